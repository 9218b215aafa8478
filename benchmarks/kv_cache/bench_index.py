"""How fast is the prefix index, how much memory does it take, and how do both grow?

Question   match, insert and evict of a 100,000-token prompt (6,250 blocks of 16), and bytes a block, in pools of
           10,000, 100,000 and 1,000,000 blocks that are full.
Regime     bookkeeping: comparing memory, and Python objects.
Ideal      match: one pass over 400 kB of tokens (about 0.05 ms) and 6,250 block ids. Goals: match under 3 ms, insert
           under 5 ms, under 200 bytes a block, all flat within 2x over the sizes.
Run        python benchmarks/kv_cache/bench_index.py [radix] [hash]      about a minute each
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
from dataclasses import asdict, dataclass

from foreword.core.config import CacheConfig, PrefixCacheKind
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.manager import make_prefix_cache
from foreword.kv_cache.prefix_cache import TOKEN_BYTES, PrefixCache, TokenPath
from foreword.kv_cache.stats import CacheStats

BLOCK_SIZE = 16
PROMPT = 100_000
PROMPT_BLOCKS = PROMPT // BLOCK_SIZE
SIZES = (10_000, 100_000, 1_000_000)
ROUNDS = 9
TURNS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of `ROUNDS` rounds, and the slowest; memory of pool and index together, all blocks stored."""

    kind: str
    num_blocks: int
    match_ms: float
    first_match_ms: float  # of a path that has never been matched: nothing is kept with it
    match_turns_ms: float  # of a conversation of as many tokens, stored in `TURNS` turns
    touch_ms: float
    insert_ms: float
    insert_max_ms: float
    evict_us_per_block: float
    bytes_per_block: float


def new_path(rng: random.Random, num_tokens: int, opening: bytes = b"") -> TokenPath:
    """A path of random 16-bit tokens behind an opening of packed ones."""
    own = array("i", array("H", rng.randbytes(2 * num_tokens))).tobytes()
    return TokenPath(b"bench", packed=bytearray(opening + own))


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


def fill(cache: PrefixCache, pool: BlockPool, rng: random.Random, num_free: int) -> None:
    """Conversations: each prompt starts with one of 50 openings and has 16 to 256 blocks of its own."""
    openings = [bytes(new_path(rng, 20 * BLOCK_SIZE).packed) for _ in range(50)]
    now = 0
    while pool.num_free > num_free:
        now += 1
        own = rng.randint(16, 256)
        opening = rng.choice(openings) if pool.num_free - num_free >= own + 20 else b""
        store(cache, pool, new_path(rng, min(own, pool.num_free - num_free) * BLOCK_SIZE, opening), now)


def timed(action: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def measure(kind: PrefixCacheKind, num_blocks: int) -> Row:
    """Fill an index, then store, match and evict long prompts in turn."""
    rng = random.Random(7)
    config = CacheConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, prefix_cache=kind)
    gc.collect()
    tracemalloc.start()
    pool = BlockPool(num_blocks)
    cache = make_prefix_cache(config, pool, CacheStats())
    fill(cache, pool, rng, PROMPT_BLOCKS)
    store(cache, pool, new_path(rng, PROMPT), num_blocks)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pool.num_cached == num_blocks
    gc.freeze()  # a collection that happens to fall into a round would count the filling's objects
    rounds = [one_round(cache, pool, new_path(rng, PROMPT), num_blocks + i) for i in range(1, ROUNDS + 1)]
    turns_ms = match_of_turns(cache, pool, new_path(rng, PROMPT), 2 * num_blocks)
    gc.unfreeze()
    match_ms, first_ms, touch_ms, insert_ms, evict_ms = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    return Row(
        kind=kind,
        num_blocks=num_blocks,
        match_ms=match_ms,
        first_match_ms=first_ms,
        match_turns_ms=turns_ms,
        touch_ms=touch_ms,
        insert_ms=insert_ms,
        insert_max_ms=max(each[3] for each in rounds),
        evict_us_per_block=evict_ms * 1e3 / PROMPT_BLOCKS,
        bytes_per_block=size / num_blocks,
    )


def one_round(
    cache: PrefixCache, pool: BlockPool, path: TokenPath, now: int
) -> tuple[float, float, float, float, float]:
    """Milliseconds of match, first match, touch, insert and evict, of one new prompt."""
    evict_ms = timed(lambda: cache.evict(PROMPT_BLOCKS))
    cache.match(path, PROMPT)  # as an admission does before anything is stored
    insert_ms = store(cache, pool, path, now)
    match_ms = timed(lambda: cache.match(path, PROMPT))
    assert cache.match(path, PROMPT).num_tokens == PROMPT
    first_match_ms = timed(lambda: cache.match(TokenPath(b"bench", packed=path.packed), PROMPT))
    touch_ms = timed(lambda: cache.touch(path, PROMPT, now))
    return match_ms, first_match_ms, touch_ms, insert_ms, evict_ms


def match_of_turns(cache: PrefixCache, pool: BlockPool, path: TokenPath, now: int) -> float:
    """Milliseconds, median, of matching a conversation each turn of which has hit all before it."""
    cache.evict(PROMPT_BLOCKS)
    for turn in range(1, TURNS + 1):
        end = turn * PROMPT_BLOCKS // TURNS * BLOCK_SIZE
        so_far = TokenPath(b"bench", packed=path.packed[: end * TOKEN_BYTES])
        found = cache.match(so_far, end).num_tokens
        if found:
            cache.touch(so_far, found, now + turn)
        store(cache, pool, so_far, now + turn)
    assert cache.match(path, PROMPT).num_tokens == PROMPT
    return statistics.median(timed(lambda: cache.match(path, PROMPT)) for _ in range(ROUNDS))


def main() -> None:
    """Print a table, and JSON on the last line."""
    every: tuple[PrefixCacheKind, ...] = ("radix", "hash")
    kinds = [kind for kind in every if kind in sys.argv[1:] or len(sys.argv) == 1]
    rows = []
    for kind in kinds:
        for num_blocks in SIZES:
            rows.append(measure(kind, num_blocks))
            figures = asdict(rows[-1])
            print(figures.pop("kind"), "  ".join(f"{name} {value:,.4g}" for name, value in figures.items()), flush=True)
    print(json.dumps({"benchmark": "index", "prompt_tokens": PROMPT, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
