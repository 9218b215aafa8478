"""How much of a prompt is stored already: the engine's own radix index, with no engine around it."""

from array import array

from foreword.core.config import CacheConfig
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.manager import make_prefix_cache
from foreword.kv_cache.prefix_cache import TokenPath
from foreword.kv_cache.stats import CacheStats

_BLOCK = 128  # the index is exact to the token whatever its blocks; large ones make fewer entries
CAPACITY = 1 << 19
"""Blocks kept: 64 million tokens, 256 MiB of them. Beyond that the least recently used go."""


class StoredPrefixes:
    """Every prompt so far, as a cache without practical bounds would hold it."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._pool = BlockPool(capacity)
        config = CacheConfig(num_blocks=capacity, block_size=_BLOCK, prefix_cache="radix", retention="lru")
        self._cache = make_prefix_cache(config, self._pool, CacheStats())
        self._now = 0
        self.evicted_blocks = 0

    def run(self, namespace: bytes, packed: bytes) -> int:
        """Find a prompt's longest stored prefix, then store the prompt. `packed` is int32 a token.

        Returns how many leading tokens were stored, at most all but the last.
        """
        self._now += 1
        path = TokenPath(namespace, packed=bytearray(packed))
        total = path.num_tokens
        if total == 0 or -(-total // _BLOCK) > self._pool.num_blocks:
            return 0
        match = self._cache.match(path, total - 1)
        held = match.blocks if match.partial is None else match.blocks + array("i", [match.partial])
        self._pool.acquire(held)
        count = -(-total // _BLOCK) - len(match.blocks)
        short = count - self._pool.num_free
        if short > 0:
            self.evicted_blocks += self._cache.evict(short)
        fresh = self._pool.allocate(count)
        if fresh is None:  # what is held of the match fills the pool: nothing is stored this time
            self._pool.release(reversed(held))
            self._cache.released(path, match.num_tokens)
            return match.num_tokens
        if match.num_tokens:
            self._cache.touch(path, match.num_tokens, self._now)
        if match.partial is not None:
            self._pool.release([match.partial])
        table = match.blocks + array("i", fresh)
        self._cache.insert(path, total, table, self._now)
        self._pool.release(reversed(table))
        self._cache.released(path, total)
        return match.num_tokens
