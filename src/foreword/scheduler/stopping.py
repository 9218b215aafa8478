"""When a sequence ends by its tokens. Stop strings are found above, where there is text."""

from collections.abc import Collection

from foreword.core.sequence import FinishReason, Sequence
from foreword.core.types import TokenId


def final_len(sequence: Sequence, max_model_len: int) -> int:
    """Most known tokens the sequence can come to have."""
    max_tokens = sequence.params.max_tokens
    return max_model_len if max_tokens is None else min(max_model_len, sequence.prompt_len + max_tokens)


def finish_reason(sequence: Sequence, eos_token_ids: Collection[TokenId], max_model_len: int) -> FinishReason | None:
    """Why the sequence ends with its newest token; None when it goes on."""
    params = sequence.params
    token = sequence.token_ids[-1]
    if sequence.num_output_tokens >= params.min_tokens:
        if token in eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP
        if token in params.stop_token_ids:
            return FinishReason.STOP
    if sequence.num_tokens >= final_len(sequence, max_model_len):
        return FinishReason.LENGTH
    return None
