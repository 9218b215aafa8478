"""Laws 3, 4 and 6 on random histories, beside naive oracles."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.config import CacheConfig, PrefixCacheKind, RetentionKind
from foreword.core.types import TokenId
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.events import AllBlocksCleared, BlockRemoved, BlockStored, EventLog
from foreword.kv_cache.manager import make_prefix_cache
from foreword.kv_cache.prefix_cache import BlockHash, TokenPath
from foreword.kv_cache.stats import CacheStats
from tests.oracles.blockwise_lru import BlockwiseLRU
from tests.oracles.naive_prefix_cache import NaivePrefixCache

SIZE = 8
tokens = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=50),
    st.builds(
        lambda head, middle, tail: [1] * head + middle + [0] * tail,
        st.integers(0, 30),
        st.lists(st.integers(0, 1), max_size=3),
        st.integers(1, 30),
    ),
)
histories = st.lists(st.tuples(st.sampled_from([b"a", b"b"]), tokens), min_size=1, max_size=12)


class Store:
    """An index with its pool, used as the manager uses it; rows of blocks are the tokens up to each row."""

    def __init__(self, kind: PrefixCacheKind, num_blocks: int = 200, retention: RetentionKind = "slru") -> None:
        self.config = CacheConfig(num_blocks=num_blocks, block_size=SIZE, prefix_cache=kind, retention=retention)
        self.pool = BlockPool(num_blocks)
        self.events = EventLog()
        self.cache = make_prefix_cache(self.config, self.pool, CacheStats(), self.events)
        self.rows: dict[int, list[tuple[int, ...]]] = {}
        self.now = 0

    def path(self, namespace: bytes, token_ids: list[int]) -> TokenPath:
        path = TokenPath(namespace)
        path.extend([TokenId(token) for token in token_ids])
        return path

    def match(self, namespace: bytes, token_ids: list[int], limit: int) -> int:
        """Match, and check that every row the match offers is the right one."""
        match = self.cache.match(self.path(namespace, token_ids), limit)
        offered = list(match.blocks) + ([match.partial] if match.partial is not None else [])
        assert len(offered) == self.config.blocks_for(match.num_tokens)
        for position in range(match.num_tokens):
            row = self.rows[offered[position // SIZE]][position % SIZE]
            assert row == tuple(token_ids[: position + 1])
        return match.num_tokens

    def run(self, namespace: bytes, token_ids: list[int], *, hold: bool = False) -> list[int]:
        """Match, compute the rest, store; returns the table, still held if asked."""
        self.now += 1
        path = self.path(namespace, token_ids)
        match = self.cache.match(path, len(token_ids))
        self.pool.acquire(match.blocks)
        need = self.config.blocks_for(len(token_ids)) - len(match.blocks)
        if need > self.pool.num_free:
            self.cache.evict(need - self.pool.num_free)
        fresh = self.pool.allocate(need)
        if fresh is None:
            self.pool.release(reversed(match.blocks))
            self.cache.released(path, match.num_tokens)
            return []
        if match.blocks:
            self.cache.touch(path, len(match.blocks) * SIZE, self.now)  # the partial block is not held, not used
        table = match.blocks + array("i", fresh)
        for index in range(len(match.blocks), len(table)):
            self.rows[table[index]] = [tuple(token_ids[: index * SIZE + row + 1]) for row in range(SIZE)]
        insertion = self.cache.insert(path, len(token_ids), table, self.now)
        for index, block in insertion.replaced:
            self.pool.acquire([block])
            self.pool.release([table[index]])
            table[index] = block
        if not hold:
            self.release(namespace, token_ids, list(table))
        return list(table)

    def release(self, namespace: bytes, token_ids: list[int], table: list[int]) -> None:
        self.pool.release(reversed(table))
        self.cache.released(self.path(namespace, token_ids), len(token_ids))

    def check(self) -> None:
        self.pool.check_invariants()
        self.cache.check_invariants()
        assert self.pool.num_free + self.pool.num_held + self.pool.num_cached == self.pool.num_blocks


@given(history=histories, asked=histories)
def test_law_3_a_match_equals_the_naive_longest_prefix(
    history: list[tuple[bytes, list[int]]], asked: list[tuple[bytes, list[int]]]
) -> None:
    for kind, granularity in (("radix", 1), ("hash", SIZE)):
        store, naive = Store(kind), NaivePrefixCache(granularity)  # type: ignore[arg-type]
        for namespace, token_ids in history:
            store.run(namespace, token_ids)
            naive.store(namespace, token_ids)
            store.check()
        for namespace, token_ids in history + asked:
            for limit in (len(token_ids), len(token_ids) - 1, len(token_ids) // 2):
                assert store.match(namespace, token_ids, limit) == naive.match(namespace, token_ids, limit)


@given(history=histories)
def test_law_4_hash_and_radix_answer_alike_to_the_block(history: list[tuple[bytes, list[int]]]) -> None:
    radix, hashed = Store("radix"), Store("hash")

    for namespace, token_ids in history:
        found = radix.match(namespace, token_ids, len(token_ids) - 1)
        assert found // SIZE * SIZE == hashed.match(namespace, token_ids, len(token_ids) - 1)
        radix.run(namespace, token_ids)
        hashed.run(namespace, token_ids)


@given(history=st.lists(st.tuples(st.sampled_from([b"a", b"b"]), tokens), min_size=1, max_size=40))
def test_runs_of_the_hash_index_keep_the_blocks_that_single_blocks_would(
    history: list[tuple[bytes, list[int]]],
) -> None:
    store, blocks = Store("hash", num_blocks=12, retention="lru"), BlockwiseLRU(12, SIZE)

    for namespace, token_ids in history:
        store.run(namespace, token_ids)
        blocks.run(namespace, token_ids)
        for name, asked in history:
            assert store.match(name, asked, len(asked)) == blocks.match(name, asked)


@pytest.mark.parametrize("retention", ["slru", "lru", "lfu", "cost"])
@pytest.mark.parametrize("kind", ["radix", "hash"])
@given(
    history=st.lists(
        st.tuples(st.sampled_from([b"a", b"b"]), tokens, st.sampled_from(["run", "run", "hold", "let go", "evict"])),
        min_size=1,
        max_size=40,
    )
)
def test_law_6_descendants_go_before_ancestors_and_held_blocks_never(
    kind: PrefixCacheKind, retention: RetentionKind, history: list[tuple[bytes, list[int], str]]
) -> None:
    store = Store(kind, num_blocks=24, retention=retention)
    held: list[tuple[bytes, list[int], list[int]]] = []
    parents: dict[BlockHash, BlockHash | None] = {}
    for namespace, token_ids, action in history:
        if action == "run":
            store.run(namespace, token_ids)
        elif action == "hold":
            table = store.run(namespace, token_ids, hold=True)
            held += [(namespace, token_ids, table)] if table else []
        elif action == "let go" and held:
            store.release(*held.pop(0))
        elif action == "evict":
            cached = store.pool.num_cached
            assert store.cache.evict(3) == min(3, cached)
        store.check()
        for _, event in store.events.take():
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
                assert parent is None or parent in parents
                for block_hash in event.block_hashes:
                    assert block_hash not in parents
                    parents[block_hash] = parent
                    parent = block_hash
            elif isinstance(event, BlockRemoved):
                for block_hash in event.block_hashes:
                    del parents[block_hash]
                    assert block_hash not in parents.values(), "an ancestor went before its descendant"
        for name, run, table in held:
            limit = len(run) // SIZE * SIZE
            assert store.match(name, run, limit) == limit
            assert all(store.pool.ref_count(block) for block in table)

    for each in held:
        store.release(*each)
    cached = store.pool.num_cached
    assert store.cache.evict(24) == cached
    assert store.pool.num_free == 24


@given(history=histories)
def test_law_7_after_a_reset_everything_is_free(history: list[tuple[bytes, list[int]]]) -> None:
    for kind in ("radix", "hash", "none"):
        store = Store(kind)
        for namespace, token_ids in history:
            store.run(namespace, token_ids)

        store.cache.reset()

        assert store.pool.num_free == 200
        store.check()
        last = store.events.take()
        assert kind == "none" or isinstance(last[-1][1], AllBlocksCleared)
