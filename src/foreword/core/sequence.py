"""A request and its continuations: tokens, counters, status. Mutated by the scheduler alone."""

from enum import Enum

from msgspec import Struct, field

from foreword.core.probe import Probe
from foreword.core.sampling_params import SamplingParams
from foreword.core.token_constraint import TokenConstraint
from foreword.core.types import RequestId, SequenceId, TokenId


class SequenceStatus(Enum):
    """Where a sequence stands. Prefill and decode are not states: both are *running*."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a sequence ended; the values are what clients see."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"


class Usage(Struct):
    """One account of a request's tokens: `prompt = cached + computed`, each counted once, whatever happened later.

    `cached` is set at first admission and stays; work repeated after a preemption shows in `recomputed` only.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose forward pass was skipped, at most prompt - 1
    written_tokens: int = 0  # prompt tokens newly made findable in the prefix cache
    computed_tokens: int = 0  # prompt tokens whose forward pass was run
    completion_tokens: int = 0
    recomputed_tokens: int = 0  # tokens whose forward pass was run again after preemption


class Sequence(Struct, eq=False):
    """One continuation with one block table.

    Known tokens are `token_ids` (prompt, then output); K and V of the first `num_computed_tokens` are present.
    """

    sequence_id: SequenceId
    request_id: RequestId
    index: int  # 0..n-1 within its request
    token_ids: list[TokenId]
    prompt_len: int
    params: SamplingParams
    seed: int
    num_computed_tokens: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_token_id: TokenId | None = None
    num_preemptions: int = 0
    num_accounted: int = 0  # leading tokens that `usage` has counted as cached or computed, once each
    usage: Usage = field(default_factory=Usage)

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.prompt_len

    @property
    def is_finished(self) -> bool:
        """True once no further token will come."""
        return self.status is SequenceStatus.FINISHED


class Lease(Struct, frozen=True):
    """Wish to keep a prompt's first `num_tokens` tokens, once stored, for `lifetime` from each use.

    Softly: within a share of the pool, before what nobody leases. A lifetime has the unit of the engine's clock:
    milliseconds, or steps where it has none.
    """

    num_tokens: int
    lifetime: int
    priority: int = 1


class Request(Struct, eq=False):
    """What a client asked: one prompt, `params.n` sequences to begin with."""

    request_id: RequestId
    prompt_token_ids: tuple[TokenId, ...]
    params: SamplingParams
    eos_token_ids: frozenset[TokenId] = frozenset()
    namespace: bytes = b""  # prefix sharing happens within one namespace only
    tenant: bytes = b""  # whose share of the pool stored prefixes count towards; may own several namespaces
    prefill_only: bool = False  # compute and store the prompt, draw nothing (warm-up)
    probe: Probe | None = None  # what to read at the prompt's end; with `prefill_only`
    branches: bool = False  # tokens are chosen above, by comparing its sequences (see `Scheduler.branch`)
    constraint: TokenConstraint | None = None  # `params.structured_output`, compiled
    arrival: int = 0  # logical time
    leases: tuple[Lease, ...] = ()
    sequences: list[Sequence] = field(default_factory=list)
