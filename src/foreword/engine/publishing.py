"""Computes a prefix once, for every namespace to begin with."""

from typing import TYPE_CHECKING

from foreword.core.errors import CapacityError, InvalidRequestError
from foreword.core.sampling_params import SamplingParams
from foreword.core.types import TokenId
from foreword.kv_cache.manager import KVCacheManager
from foreword.kv_cache.published import PUBLISHED

if TYPE_CHECKING:
    from foreword.engine.engine import Engine


def publish_prefix(engine: "Engine", manager: KVCacheManager, max_model_len: int, token_ids: list[TokenId]) -> int:
    """Compute a prefix and let all namespaces begin with its whole blocks, for good; returns their tokens.

    Events of what is stored behind it would name no parent, so there must be none. The longest sequence must still fit
    beside all that is published.

    Raises:
        InvalidRequestError, CapacityError: it can't be; nothing was published.
    """
    config = manager.config
    if config.prefix_cache != "radix":
        raise InvalidRequestError("publish", "the radix prefix cache", config.prefix_cache)
    if len(token_ids) < config.block_size:
        raise InvalidRequestError("publish", f"at least a block of {config.block_size} tokens", len(token_ids))
    held = manager.published.num_blocks + len(token_ids) // config.block_size
    if held + config.blocks_for(max_model_len) + 1 > config.num_blocks:
        raise CapacityError(
            f"publish: {held} blocks of published prefixes and a sequence of {max_model_len} tokens do not fit "
            f"in a pool of {config.num_blocks} blocks"
        )
    engine.add("publish", token_ids, SamplingParams(max_tokens=1), namespace=PUBLISHED, prefill_only=True)
    while engine.has_unfinished:
        engine.step()
    return manager.published.add(token_ids, manager.prefix_cache)
