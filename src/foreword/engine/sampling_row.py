"""What the sampler is told of a sequence."""

from foreword.core.outputs import SamplingRow
from foreword.core.sequence import Request, Sequence
from foreword.core.types import TokenId


def sampling_row(sequence: Sequence, request: Request, allowed_tokens: bytes | None) -> SamplingRow:
    """The row of a sequence's next token; `allowed_tokens` is the mask of its constraint, if it has one."""
    params = sequence.params
    forbidden: tuple[TokenId, ...] = ()
    if sequence.num_output_tokens < params.min_tokens:
        eos = frozenset() if params.ignore_eos else request.eos_token_ids
        forbidden = (*eos, *(TokenId(t) for t in params.stop_token_ids))
    if allowed_tokens is not None and params.ignore_eos:  # beyond an end token no constraint knows what may follow
        forbidden = (*forbidden, *request.eos_token_ids)
    return SamplingRow(
        params, sequence.seed, sequence.index, sequence.token_ids, sequence.prompt_len, forbidden, allowed_tokens
    )
