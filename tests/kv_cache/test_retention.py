"""Who goes first: policies, hints with their budget and end, quotas, and what an index remembers of the departed."""

from array import array

import pytest

from foreword.core.config import CacheConfig, PrefixCacheKind, RetentionKind
from foreword.core.errors import InvalidRequestError, InvariantError
from foreword.core.types import TokenId
from foreword.kv_cache import hash_prefix_cache, radix_prefix_cache
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.events import EventLog
from foreword.kv_cache.explain import MissCause
from foreword.kv_cache.hash_prefix_cache import HashPrefixCache
from foreword.kv_cache.manager import make_prefix_cache
from foreword.kv_cache.prefix_cache import NoPrefixCache, PrefixCache, TokenPath
from foreword.kv_cache.radix_prefix_cache import RadixPrefixCache
from foreword.kv_cache.stats import CacheStats

SIZE = 8
KINDS: list[PrefixCacheKind] = ["radix", "hash"]


class Index:
    """An index in which runs of whole blocks are stored and used by name."""

    def __init__(self, kind: PrefixCacheKind, num_blocks: int = 10, **settings: object) -> None:
        config = CacheConfig(num_blocks=num_blocks, block_size=SIZE, prefix_cache=kind, **settings)  # type: ignore[arg-type]
        self.pool = BlockPool(num_blocks)
        self.stats = CacheStats()
        self.cache: PrefixCache = make_prefix_cache(config, self.pool, self.stats)
        self.now = 0

    def path(self, name: int, num_blocks: int, tenant: bytes = b"") -> TokenPath:
        path = TokenPath(tenant, tenant)
        path.extend([TokenId(name * 1000 + i) for i in range(num_blocks * SIZE)])
        return path

    def store(self, name: int, num_blocks: int = 1, tenant: bytes = b"") -> None:
        self.now += 1
        path = self.path(name, num_blocks, tenant)
        found = self.cache.match(path, path.num_tokens).blocks
        self.pool.acquire(found)
        need = num_blocks - len(found)
        if need > self.pool.num_free:
            self.cache.evict(need - self.pool.num_free)
        fresh = self.pool.allocate(need)
        assert fresh is not None
        found.extend(fresh)
        self.cache.insert(path, path.num_tokens, found, self.now)
        self.pool.release(reversed(found))
        self.cache.released(path, path.num_tokens)

    def use(self, name: int, num_blocks: int = 1) -> None:
        self.now += 1
        self.cache.touch(self.path(name, num_blocks), num_blocks * SIZE, self.now)

    def stored(self, names: range, num_blocks: int = 1, tenant: bytes = b"") -> list[int]:
        sizes = {name: self.path(name, num_blocks, tenant) for name in names}
        return [name for name, path in sizes.items() if self.cache.match(path, path.num_tokens).num_tokens]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("retention", "uses", "expected"),
    [
        ("lru", [1, 1, 1, 0], [0, 1]),  # of 0..3, the two used last stay
        ("lfu", [1, 1, 2], [1, 2]),
        ("slru", [0], [0, 3]),  # hit once: protected from what was only stored
        ("cost", [0, 1], [0, 1]),
    ],
)
def test_each_policy_keeps_what_it_says(
    kind: PrefixCacheKind, retention: RetentionKind, uses: list[int], expected: list[int]
) -> None:
    index = Index(kind, retention=retention)
    for name in range(4):
        index.store(name)
    for name in uses:
        index.use(name)

    index.cache.evict(2)

    assert index.stored(range(4)) == expected
    assert index.stats.lifetime.total == 2
    assert index.stats.reuse_gap.total == len(uses)


def test_cost_aware_keeps_the_deep_and_dear_longer_than_the_shallow() -> None:
    index = Index("radix", num_blocks=1000, retention="cost")
    index.store(0, num_blocks=600)
    index.use(0, num_blocks=600)
    for name in range(1, 50):
        index.store(name, num_blocks=40)

    index.use(0, num_blocks=300)  # both parts of the run keep their worth
    assert index.stored(range(1), num_blocks=600) == [0]
    assert index.cache.match(index.path(0, 600), 4800).num_tokens == 4800


def test_the_protected_segment_is_bounded_and_what_falls_out_starts_again() -> None:
    index = Index("hash", num_blocks=10, retention="slru")  # two blocks protected
    for name in range(4):
        index.store(name)
    for name in (0, 1, 2):
        index.use(name)

    index.cache.evict(2)

    assert index.stored(range(4)) == [1, 2]  # 3 was never hit, 0 was demoted by 2


def test_both_parts_of_a_protected_run_stay_protected_when_it_is_split() -> None:
    index = Index("radix", num_blocks=20, retention="slru")
    index.store(0, num_blocks=4)
    index.use(0, num_blocks=4)
    index.use(0, num_blocks=2)
    index.store(1, num_blocks=10)

    index.store(2, num_blocks=12)

    assert index.cache.match(index.path(0, 4), 4 * SIZE).num_tokens == 4 * SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_a_hint_keeps_a_prefix_until_its_end_and_within_its_budget(kind: PrefixCacheKind) -> None:
    index = Index(kind, retention="lru", hint_share=0.2)
    for name in range(4):
        index.store(name)

    assert index.cache.retain(index.path(0, 1), SIZE, 5, 100) == SIZE
    assert index.cache.retain(index.path(0, 1), SIZE, 1, 50) == SIZE  # neither weaker nor shorter than before
    assert index.cache.retain(index.path(1, 1), SIZE, 5, 100) == SIZE
    assert index.cache.retain(index.path(2, 1), SIZE, 5, 100) == 0  # the budget is two blocks
    assert index.cache.retain(index.path(2, 1), SIZE, 5, 0) == 0  # over before it began
    index.cache.evict(2)
    assert index.stored(range(4)) == [0, 1]

    index.now = 104  # asked for at time 4
    index.store(4)
    index.cache.evict(1)
    assert index.stored(range(5)) == [1, 4]
    assert index.cache.explain(index.path(0, 1), SIZE).cause is MissCause.EXPIRED
    assert index.cache.explain(index.path(2, 1), SIZE).cause is MissCause.EVICTED
    assert index.cache.explain(index.path(4, 1), SIZE).cause is MissCause.NONE
    index.cache.evict(9)
    assert index.pool.num_free == 10


def test_a_hint_goes_with_both_parts_of_a_run_that_is_split() -> None:
    index = Index("radix", retention="lru", hint_share=0.4)
    index.store(0, num_blocks=4)
    index.cache.retain(index.path(0, 4), 4 * SIZE, 5, 100)
    index.use(0, num_blocks=2)
    for name in range(1, 7):
        index.store(name)

    index.store(7, num_blocks=6)

    assert index.cache.match(index.path(0, 4), 4 * SIZE).num_tokens == 4 * SIZE
    index.now = 110  # the hints end, also that of the upper part, which is no candidate while the lower one is there
    index.store(8, num_blocks=3)
    index.cache.evict(1)
    index.store(8, num_blocks=9)
    assert index.cache.match(index.path(0, 4), 4 * SIZE).num_tokens <= SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_a_tenant_over_its_quota_makes_room_in_its_own_part(kind: PrefixCacheKind) -> None:
    index = Index(kind, tenant_share=0.4)
    index.store(0, tenant=b"a")
    for name in range(1, 20):
        index.store(name, tenant=b"b")

    assert index.stored(range(20), tenant=b"a") == [0]
    assert index.stored(range(20), tenant=b"b") == [16, 17, 18, 19]

    index.store(20, num_blocks=5, tenant=b"b")  # more than the quota by itself, while it is held
    assert index.stored(range(1), tenant=b"a") == [0]
    assert index.stats.evicted_blocks > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_whose_front_is_held_loses_what_lies_behind(kind: PrefixCacheKind) -> None:
    index = Index(kind)
    index.store(0, num_blocks=4)
    front = index.cache.match(index.path(0, 2), 2 * SIZE).blocks
    index.pool.acquire(front)

    assert index.cache.evict(9) == 2

    index.pool.release(reversed(front))
    index.cache.released(index.path(0, 2), 2 * SIZE)
    assert index.cache.match(index.path(0, 4), 4 * SIZE).num_tokens == 2 * SIZE
    assert index.cache.evict(9) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_queue_of_victims_does_not_grow_with_uses(kind: PrefixCacheKind) -> None:
    index = Index(kind, num_blocks=10)
    for round_ in range(500):
        index.store(round_ % 3)
        index.use(round_ % 3)
        index.use((round_ + 1) % 3) if round_ > 1 else None

    retention = index.cache._retention  # type: ignore[attr-defined]
    assert len(retention._queue._heap) <= 70


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_without_events_frees_everything(kind: PrefixCacheKind) -> None:
    index = Index(kind)
    index.store(0, num_blocks=4)

    index.cache.reset()

    assert index.pool.num_free == 10
    assert index.stored(range(1)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_departed_is_remembered_within_a_bound(kind: PrefixCacheKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix_prefix_cache, "MAX_DEPARTED", 2)
    monkeypatch.setattr(hash_prefix_cache, "MAX_DEPARTED", 2)
    index = Index(kind)
    for name in range(5):
        index.store(name)

    index.cache.evict(4)

    causes = [index.cache.explain(index.path(name, 1), SIZE).cause for name in range(4)]
    assert causes == [MissCause.CHANGED, MissCause.CHANGED, MissCause.EVICTED, MissCause.EVICTED]


def test_a_hint_ends_at_the_first_block_the_budget_cannot_keep() -> None:
    index = Index("hash", retention="lru", hint_share=0.2)
    index.store(0, num_blocks=4)

    assert index.cache.retain(index.path(0, 4), 4 * SIZE, 1, 100) == 2 * SIZE
    assert index.cache.retain(index.path(0, 4), 4 * SIZE, 1, 100) == 2 * SIZE
    index.store(1, num_blocks=6)
    index.cache.evict(8)
    assert index.cache.match(index.path(0, 4), 4 * SIZE).num_tokens == 2 * SIZE


def test_the_hash_index_explains_to_the_token() -> None:
    index = Index("hash")

    def explain(token_ids: list[int], namespace: bytes = b"") -> tuple[int, MissCause, int | None, int | None]:
        path = TokenPath(namespace)
        path.extend([TokenId(token) for token in token_ids])
        report = index.cache.explain(path, path.num_tokens)
        return report.matched_tokens, report.cause, report.wanted_token, report.stored_token

    stored = [TokenId(i) for i in range(2 * SIZE)]  # what `store(0, 2)` stores
    assert explain([*stored]) == (0, MissCause.NEVER_SEEN, 0, None)
    index.store(0, num_blocks=2)
    index.store(5, num_blocks=1)
    assert explain([*stored, 1, 2, 3]) == (2 * SIZE, MissCause.NONE, None, None)
    assert explain([*stored, *range(SIZE)]) == (2 * SIZE, MissCause.NEVER_SEEN, 0, None)
    assert explain([*stored[: SIZE + 3], *[77] * SIZE]) == (SIZE + 3, MissCause.CHANGED, 77, SIZE + 3)
    assert explain([*stored[:3], *[77] * SIZE]) == (3, MissCause.CHANGED, 77, 3)  # nearer than the newest
    assert explain([77] * SIZE) == (0, MissCause.CHANGED, 77, 5000)  # the newest of those equally far
    assert explain([*stored], b"other") == (0, MissCause.OTHER_NAMESPACE, 0, None)
    assert explain([77] * SIZE, b"other") == (0, MissCause.NEVER_SEEN, 77, None)
    index.cache.evict(1)
    assert explain([*stored]) == (SIZE, MissCause.EVICTED, SIZE, None)
    index.cache.evict(2)
    assert explain([*stored]) == (0, MissCause.EVICTED, 0, None)


def test_of_two_next_blocks_with_one_hash_the_first_keeps_it() -> None:
    pool = BlockPool(9)
    config = CacheConfig(num_blocks=9, block_size=SIZE, prefix_cache="hash")
    cache = HashPrefixCache(config, pool, CacheStats(), num_hash_bytes=0)
    for name, stored in ((0, SIZE), (1, 0), (0, SIZE)):
        path = TokenPath(b"")
        path.extend([TokenId(name * 1000 + i) for i in range(SIZE)])
        blocks = pool.allocate(1)
        assert blocks is not None
        assert cache.insert(path, SIZE, array("i", blocks), name).num_stored == stored
        pool.release(blocks)
        cache.released(path, SIZE)
        assert cache.match(path, SIZE).num_tokens == stored
    cache.check_invariants()

    assert cache.num_collisions > 0
    assert pool.num_cached == 1


def test_hash_collisions_cost_a_miss_and_never_a_wrong_block() -> None:
    pool = BlockPool(600)
    config = CacheConfig(num_blocks=600, block_size=SIZE, prefix_cache="hash")
    cache = HashPrefixCache(config, pool, CacheStats(), EventLog(), num_hash_bytes=1)
    contents: dict[int, bytes] = {}
    for name in range(500):
        path = TokenPath(b"")
        path.extend([TokenId(name * 7 + i) for i in range(SIZE)])
        assert cache.match(path, SIZE).num_tokens == 0
        blocks = pool.allocate(1)
        assert blocks is not None
        insertion = cache.insert(path, SIZE, array("i", blocks), name)
        assert insertion.num_stored in (0, SIZE)
        contents[blocks[0]] = bytes(path.packed)
        for block in cache.match(path, SIZE).blocks:
            assert contents[block] == bytes(path.packed)
    cache.check_invariants()

    assert cache.num_collisions > 100
    assert 1 < sum(1 for _ in cache.stored_hashes()) <= 256


def test_an_unsound_index_is_found_out() -> None:
    for damage in ("key", "place", "tokens", "pool"):
        index = Index("hash")
        index.store(0, num_blocks=2)
        cache = index.cache
        assert isinstance(cache, HashPrefixCache)
        (run,) = cache._runs()
        if damage == "key":
            run.key = b"x" * 32
        elif damage == "place":
            run.start += 1
        elif damage == "tokens":
            del run.tokens[-4:]
        else:
            run.blocks[1] = 9
        with pytest.raises(InvariantError):
            cache.check_invariants()
    for damage in ("run", "pool"):
        index = Index("radix")
        index.store(0, num_blocks=2)
        tree = index.cache
        assert isinstance(tree, RadixPrefixCache)
        (node,) = tree._nodes()
        if damage == "run":
            node.start += 1
        else:
            node.blocks[1] = 9
        with pytest.raises(InvariantError):
            tree.check_invariants()


def test_no_cache_finds_keeps_and_evicts_nothing() -> None:
    cache = NoPrefixCache()
    path = TokenPath(b"")
    path.extend([TokenId(1)])

    assert cache.match(path, 1).num_tokens == 0
    assert cache.retain(path, 1, 1, 1) == 0
    assert cache.evict(1) == 0
    cache.touch(path, 1, 1)
    cache.advance(1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retention", "newest"),
        ("reuse_generated", "all"),
        ("hint_share", 1.5),
        ("pin_share", -0.1),
        ("tenant_share", 2),
    ],
)
def test_bad_settings_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        CacheConfig(num_blocks=1, **{field: value})  # type: ignore[arg-type]

    assert caught.value.field == field
