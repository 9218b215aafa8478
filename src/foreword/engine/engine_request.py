"""What an `AsyncEngine` is asked."""

from collections.abc import Sequence

from msgspec import Struct

from foreword.core.probe import Probe
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Lease
from foreword.core.token_constraint import TokenConstraint


class EngineRequest(Struct, frozen=True, kw_only=True):
    """Arguments of `Engine.add`."""

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    namespace: bytes = b""
    tenant: bytes = b""
    prefill_only: bool = False
    probe: Probe | None = None
    leases: tuple[Lease, ...] = ()
    constraint: TokenConstraint | None = None
