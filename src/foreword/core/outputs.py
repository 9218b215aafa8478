"""Decisions and results that cross layers as plain data.

The scheduler writes `SchedulerOutput`; the runner reads it; neither imports the other.
"""

from array import array

from msgspec import Struct

from foreword.core.errors import ForewordError
from foreword.core.probe import Reading
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import FinishReason, Usage
from foreword.core.types import BlockId, RequestId, SequenceId, TokenId


class BlockCopy(Struct, frozen=True):
    """Copy a whole block's K and V, over all layers, before the step's forward pass (copy-on-write as data)."""

    source: BlockId
    destination: BlockId


class ScheduledSequence(Struct, frozen=True):
    """Compute tokens `[start, start + len(token_ids))` of one sequence.

    `block_table` is the sequence's own `array('i')`, read but never changed or kept by the reader; it covers at
    least `start + len(token_ids)` positions. `num_logits` counts the last scheduled tokens whose logits are needed:
    0 for an inner chunk, 1 to sample the next token or to probe, more for prompt logprobs or drafts.
    The last `num_drafts` of `token_ids` are drafts, no known tokens: a token is drawn behind the last known one and
    behind each of them.
    """

    sequence_id: SequenceId
    token_ids: list[TokenId]
    start: int
    block_table: "array[int]"
    num_logits: int
    samples: bool  # True when the last known token is scheduled, so that a new token is drawn
    num_drafts: int = 0


class SchedulerOutput(Struct, frozen=True):
    """Everything the runner needs for one step; order of `sequences` is the order of rows in the batch."""

    step: int
    sequences: tuple[ScheduledSequence, ...]
    copies: tuple[BlockCopy, ...] = ()
    fresh_blocks: tuple[BlockId, ...] = ()  # allocated in this step; debug mode fills them with NaN before copies
    preempted: tuple[SequenceId, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes."""
        return sum(len(s.token_ids) for s in self.sequences)


class Logprob(Struct, frozen=True):
    """Log-probability (natural logarithm, before temperature and filters) and 1-based rank of one token."""

    logprob: float
    rank: int


TokenLogprobs = dict[int, Logprob]
"""Token id -> logprob: the chosen token first, then the asked number of most likely ones, best first."""


class SampledToken(Struct, frozen=True):
    """One drawn token and, where asked for, its logprobs."""

    token_id: TokenId
    logprobs: TokenLogprobs | None = None


class SequenceStep(Struct, frozen=True):
    """What a step added to one sequence."""

    request_id: RequestId
    sequence_id: SequenceId
    index: int
    new_tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None
    usage: Usage
    stop_token_id: TokenId | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None  # once, with the first token
    reading: Reading | None = None  # once, where the request has a probe


class RequestFailure(Struct, frozen=True):
    """A request that is over without an answer, while the others of its step go on."""

    request_id: RequestId
    error: ForewordError


class StepResult(Struct, frozen=True):
    """What a step did, for whoever called `Engine.step`."""

    step: int
    num_scheduled_tokens: int
    sequences: tuple[SequenceStep, ...]
    failures: tuple[RequestFailure, ...] = ()


class SamplingRow(Struct, frozen=True):
    """What the sampler needs to know of one row of logits, beside the logits.

    `token_ids` is the sequence's own list (prompt, then output), read but never changed or kept by the reader.
    """

    params: SamplingParams
    seed: int
    sequence_index: int
    token_ids: list[TokenId]
    prompt_len: int
    forbidden_token_ids: tuple[TokenId, ...] = ()  # end tokens while fewer than min_tokens were drawn
    allowed_tokens: bytes | None = None  # a constraint's mask, see `ConstraintState`; it comes before forbidden tokens
    drafts: tuple[TokenId, ...] = ()  # taken to follow `token_ids`: where they don't, the row is of no account

    @property
    def position(self) -> int:
        """Output tokens drawn before this one."""
        return len(self.token_ids) + len(self.drafts) - self.prompt_len

    @property
    def past_token_ids(self) -> list[TokenId]:
        """All tokens before the one to draw. Cost: O(them) where there are drafts."""
        return [*self.token_ids, *self.drafts] if self.drafts else self.token_ids
