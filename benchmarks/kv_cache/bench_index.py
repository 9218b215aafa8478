"""How fast is the prefix index, and how does it grow?

Question   match and insert of a 100,000-token prompt, eviction and bytes a block, from 10,000 to 1,000,000 blocks.
Regime     bookkeeping: memory comparison and Python objects.
Ideal      one pass over 400 kB of tokens (about 0.05 ms) and 6,250 block ids.
Run        python -m benchmarks.kv_cache.bench_index [radix|hash]
"""

import gc
import json
import random
import statistics
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable

from foreword.core.config import CacheConfig, PrefixCacheKind
from foreword.core.types import TokenId
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.manager import make_prefix_cache
from foreword.kv_cache.prefix_cache import PrefixCache, TokenPath
from foreword.kv_cache.stats import CacheStats

BLOCK_SIZE = 16
PROMPT = 100_000


def random_tokens(rng: random.Random, count: int) -> list[TokenId]:
    return [TokenId(token) for token in array("H", rng.randbytes(2 * count))]


def store(cache: PrefixCache, pool: BlockPool, path: TokenPath, now: int) -> float:
    """What a request of `path` does to the index from start to end; returns the milliseconds of the insertion alone."""
    num_blocks = path.num_tokens // BLOCK_SIZE
    found = cache.match(path, path.num_tokens)
    pool.acquire(found.blocks)
    blocks = pool.allocate(num_blocks - len(found.blocks))
    assert blocks is not None
    table = found.blocks + array("i", blocks)
    start = time.perf_counter()
    cache.insert(path, num_blocks * BLOCK_SIZE, table, now)
    elapsed = time.perf_counter() - start
    pool.release(reversed(table))
    cache.released(path, num_blocks * BLOCK_SIZE)
    return elapsed * 1e3


def fill(cache: PrefixCache, pool: BlockPool, rng: random.Random, num_blocks: int) -> None:
    """Conversations: each prompt starts with one of 50 system prompts and has 16 to 256 blocks of its own."""
    openings = [random_tokens(rng, 20 * BLOCK_SIZE) for _ in range(50)]
    now = 0
    while pool.num_free > num_blocks:
        now += 1
        own = min(rng.randint(16, 256), max(1, pool.num_free - num_blocks - 20)) * BLOCK_SIZE
        path = TokenPath(b"bench")
        path.extend(rng.choice(openings) + random_tokens(rng, own))
        store(cache, pool, path, now)


def timed(action: Callable[[], object], repeats: int = 9) -> float:
    """Median milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure(kind: PrefixCacheKind, num_blocks: int) -> dict[str, float]:
    rng = random.Random(7)
    room = PROMPT // BLOCK_SIZE
    config = CacheConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, prefix_cache=kind)
    gc.collect()
    tracemalloc.start()
    pool = BlockPool(num_blocks)
    cache = make_prefix_cache(config, pool, CacheStats())
    fill(cache, pool, rng, 2 * room)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stored = pool.num_cached
    long = TokenPath(b"bench")
    long.extend(random_tokens(rng, PROMPT))
    cache.match(long, PROMPT)
    gc.freeze()  # a collection that happens to fall into the insertion would count the filling's objects
    insert_ms = store(cache, pool, long, 1_000_000)
    assert cache.match(long, PROMPT).num_tokens == PROMPT
    match_ms = timed(lambda: cache.match(long, PROMPT))
    cold_match_ms = timed(lambda: cache.match(TokenPath(b"bench", packed=long.packed), PROMPT))
    start = time.perf_counter()
    evicted = cache.evict(1000)
    evict_us = (time.perf_counter() - start) * 1e6 / evicted
    return {
        "num_blocks": num_blocks,
        "match_ms": match_ms,
        "first_match_ms": cold_match_ms,
        "insert_ms": insert_ms,
        "evict_us_per_block": evict_us,
        "bytes_per_block": size / stored,
    }


def main() -> None:
    kinds: list[PrefixCacheKind] = ["hash"] if "hash" in sys.argv else ["radix"]
    rows = [measure(kinds[0], count) for count in (20_000, 100_000, 1_000_000)]
    for row in rows:
        print("  ".join(f"{name} {value:,.3f}" for name, value in row.items()))
    print(json.dumps({"benchmark": "index", "kind": kinds[0], "rows": rows}))


if __name__ == "__main__":
    main()
