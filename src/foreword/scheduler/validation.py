"""Refusing at the door what can never run."""

from collections.abc import Container

from foreword.core.config import CacheConfig
from foreword.core.errors import CapacityError, InvalidRequestError
from foreword.core.sequence import Request
from foreword.core.types import RequestId, SequenceId
from foreword.scheduler.stopping import final_len

MAX_TOKEN_ID = 2**31 - 1


def check_ids(request: Request, requests: Container[RequestId], sequences: Container[SequenceId]) -> None:
    """Check a request's ids against those in use.

    Raises:
        InvalidRequestError: one is in use.
    """
    if request.request_id in requests:
        raise InvalidRequestError("request_id", "an id not in use", request.request_id)
    for sequence in request.sequences:
        if sequence.sequence_id in sequences:
            raise InvalidRequestError("sequence_id", "an id not in use", sequence.sequence_id)


def check_request(request: Request, cache_config: CacheConfig, max_model_len: int) -> None:
    """Check a request on its own.

    Raises:
        InvalidRequestError: an empty prompt, a token id outside int32, a prompt that leaves no room in the context
            for one more token, or sequences that are not the request's `n` new ones.
        CapacityError: one of its sequences alone could outgrow the pool.
    """
    prompt, sequences = request.prompt_token_ids, request.sequences
    if not prompt:
        raise InvalidRequestError("prompt", "at least one token", "an empty prompt")
    if min(prompt) < 0 or max(prompt) > MAX_TOKEN_ID:
        raise InvalidRequestError("prompt", f"token ids from 0 to {MAX_TOKEN_ID}", (min(prompt), max(prompt)))
    if len(prompt) >= max_model_len:
        raise InvalidRequestError("prompt", f"fewer than {max_model_len} tokens (max_model_len)", len(prompt))
    if not len({sequence.sequence_id for sequence in sequences}) == len(sequences) == request.params.n:
        raise InvalidRequestError("sequences", f"{request.params.n} with different ids", len(sequences))
    if any(tuple(sequence.token_ids) != tuple(prompt) for sequence in sequences):
        raise InvalidRequestError("sequences", "the prompt's tokens in each", "other tokens")
    most = final_len(sequences[0], max_model_len) - 1  # the last token is drawn, never computed
    if cache_config.blocks_for(most) > cache_config.num_blocks:
        raise CapacityError(
            f"request {request.request_id} may need {most} token slots, the KV pool has "
            f"{cache_config.num_blocks * cache_config.block_size}: lower max_tokens or give the pool more memory"
        )
