"""Replaying traces of block ids through an index, one request at a time, and the clairvoyant optimum beside it."""

import heapq
import json
from array import array
from pathlib import Path

from foreword.core.config import CacheConfig, PrefixCacheKind, RetentionKind
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.manager import make_prefix_cache
from foreword.kv_cache.prefix_cache import TokenPath
from foreword.kv_cache.stats import CacheStats

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
BLOCK_SIZE = 16

Trace = list[list[int]]


def load_mooncake(name: str) -> Trace:
    """Block ids of each request of one Mooncake trace, in order."""
    with (DATA / "mooncake" / f"{name}_trace.jsonl").open() as lines:
        return [json.loads(line)["hash_ids"] for line in lines]


def count_hits(trace: Trace, kind: PrefixCacheKind, num_blocks: int, retention: RetentionKind = "slru") -> int:
    """Blocks served from the cache. Each id stands for one block of tokens of its own; every request ends in one
    token more, its own, so that computing the last token costs no block. What exceeds the pool is left out.
    """
    config = CacheConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, prefix_cache=kind, retention=retention)
    pool = BlockPool(num_blocks)
    cache = make_prefix_cache(config, pool, CacheStats())
    hits = 0
    for now, ids in enumerate(trace):
        kept = ids[: num_blocks - 1]
        tokens = array("i")
        for block_id in kept:
            tokens.extend(range(block_id * BLOCK_SIZE, (block_id + 1) * BLOCK_SIZE))
        tokens.append(2**30 + now)
        path = TokenPath(b"", packed=bytearray(tokens.tobytes()))
        match = cache.match(path, len(tokens) - 1)
        hits += len(match.blocks)
        pool.acquire(match.blocks)
        need = len(kept) - len(match.blocks)
        if need > pool.num_free:
            cache.evict(need - pool.num_free)
        fresh = pool.allocate(need)
        assert fresh is not None
        if match.num_tokens:
            cache.touch(path, match.num_tokens, now)
        table = match.blocks + array("i", fresh)
        cache.insert(path, len(kept) * BLOCK_SIZE, table, now)
        pool.release(reversed(table))
        cache.released(path, len(kept) * BLOCK_SIZE)
    return hits


def count_optimal_hits(trace: Trace, num_blocks: int) -> int:
    """Hits of a cache that knows the future: the block used next last goes first, of one prefix the deepest first."""
    uses: dict[int, list[int]] = {}
    for now, ids in enumerate(trace):
        for block_id in ids:
            uses.setdefault(block_id, []).append(now)
    for times in uses.values():
        times.reverse()
    cached: dict[int, tuple[int, int]] = {}
    heap: list[tuple[int, int, int]] = []
    hits = 0
    for ids in trace:
        kept = ids[: num_blocks - 1]
        hits += next((depth for depth, block_id in enumerate(kept) if block_id not in cached), len(kept))
        for depth, block_id in enumerate(kept):
            times = uses[block_id]
            times.pop()
            cached[block_id] = (-(times[-1] if times else len(trace)), -depth)
            heapq.heappush(heap, (*cached[block_id], block_id))
        while len(cached) > num_blocks:
            next_use, depth, block_id = heapq.heappop(heap)
            if cached.get(block_id) == (next_use, depth):
                del cached[block_id]
    return hits
