"""A lease begins when its prefix is stored, is renewed by each hit, ends with its time, never outgrows its budget.

Whatever happens, the index and a clock beside each block agree on who goes first.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from foreword.core.config import CacheConfig, PrefixCacheKind, SchedulerConfig
from foreword.core.errors import InvariantError
from foreword.core.sequence import Lease
from foreword.kv_cache.explain import MissCause
from tests.kv_cache.test_retention import KINDS, SIZE, Index
from tests.oracles.engine import SimulatedEngine
from tests.oracles.naive_leases import NaiveLeases

NAMES = range(5)


class LeaseMachine(RuleBasedStateMachine):
    """Store, use, lease, wait and evict in any order; the budget is never in the way."""

    kind: PrefixCacheKind = "radix"

    @initialize()
    def start(self) -> None:
        self.index = Index(self.kind, num_blocks=12, hint_share=1.0)
        self.naive = NaiveLeases()

    def blocks(self) -> set[tuple[int, int]]:
        """What is stored."""
        found = set()
        for name in NAMES:
            path = self.index.path(name, 4)
            found |= {(name, i) for i in range(self.index.cache.match(path, path.num_tokens).num_tokens // SIZE)}
        return found

    def num_stored(self, name: int) -> int:
        return sum(block[0] == name for block in self.blocks())

    def check(self, before: set[tuple[int, int]]) -> None:
        """Of what was stored and was not leased, nothing may be left if something that was has gone."""
        after = self.blocks()
        gone = before - after
        if any(self.naive.is_leased(block) for block in gone):
            assert not [block for block in before & after if not self.naive.is_leased(block)]
        for block in gone:
            self.naive.drop(block)

    def pass_time(self, count: int = 1) -> None:
        self.index.now += count
        self.naive.now = self.index.now
        self.index.cache.advance(self.index.now)

    @rule(name=st.sampled_from(NAMES), num_blocks=st.integers(1, 4))
    def store(self, name: int, num_blocks: int) -> None:
        self.pass_time()
        before = self.blocks()
        short = num_blocks - self.num_stored(name) - self.index.pool.num_free
        if short > 0:  # made apart, so that what goes can be compared
            self.index.cache.evict(short)
            self.check(before)
            return
        self.index.now -= 1
        self.index.store(name, num_blocks)

    @rule(name=st.sampled_from(NAMES), num_blocks=st.integers(1, 4))
    def use(self, name: int, num_blocks: int) -> None:
        covered = min(num_blocks, self.num_stored(name))
        if covered:
            self.pass_time()
            self.index.now -= 1
            self.index.use(name, covered)
            self.naive.use(name, covered)

    @rule(name=st.sampled_from(NAMES), num_blocks=st.integers(1, 4), lifetime=st.integers(1, 40))
    def retain(self, name: int, num_blocks: int, lifetime: int) -> None:
        covered = min(num_blocks, self.num_stored(name))
        kept = self.index.cache.retain(self.index.path(name, num_blocks), num_blocks * SIZE, 1, lifetime)
        assert kept == covered * SIZE
        self.naive.retain(name, covered, lifetime)

    @rule(count=st.integers(1, 30))
    def wait(self, count: int) -> None:
        self.pass_time(count)

    @rule(count=st.integers(1, 4))
    def evict(self, count: int) -> None:
        before = self.blocks()
        self.index.cache.evict(count)
        self.check(before)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "index"):
            self.index.cache.check_invariants()
            leased = sum(self.naive.is_leased(block) for block in self.blocks())
            assert self.index.cache._retention.num_hinted_blocks == leased  # type: ignore[attr-defined]


class HashLeaseMachine(LeaseMachine):
    """The same with the hash index."""

    kind = "hash"


TestLeaseMachine = LeaseMachine.TestCase
TestHashLeaseMachine = HashLeaseMachine.TestCase


def engine(kind: PrefixCacheKind = "radix", num_blocks: int = 16, **settings: object) -> SimulatedEngine:
    config = CacheConfig(num_blocks=num_blocks, block_size=SIZE, prefix_cache=kind, debug=True, **settings)  # type: ignore[arg-type]
    return SimulatedEngine(config, SchedulerConfig(max_num_seqs=4, token_budget=64, max_model_len=100))


def hits(engine: SimulatedEngine, prompt: list[int]) -> int:
    return engine.manager.query(b"", [*prompt, 0])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lease_outlives_a_flood_and_ends_with_its_time(kind: PrefixCacheKind) -> None:
    machine = engine(kind, retention="lru")
    kept = [3] * 16
    machine.add([*kept, *[4] * 20], max_tokens=1, leases=(Lease(16, lifetime=1000),))
    machine.run()

    for i in range(20):
        machine.add([10 + i] * 40, max_tokens=1)
        machine.run()
    assert hits(machine, kept) == 16
    assert hits(machine, [*kept, *[4] * 20]) == 16  # what stood behind it was not leased

    machine.manager.begin_step(5000)
    for i in range(20):
        machine.add([40 + i] * 40, max_tokens=1)
        machine.run()
    assert hits(machine, kept) == 0
    assert machine.manager.explain(b"", [*kept, 0]).cause is MissCause.EXPIRED  # type: ignore[list-item]


def test_a_hit_renews_a_lease_and_a_lease_on_what_is_stored_begins_with_the_hit() -> None:
    machine = engine(retention="lru")
    machine.add([3] * 20, max_tokens=1)
    machine.run()
    machine.add([3] * 20, max_tokens=1, leases=(Lease(16, lifetime=100),))  # found, not stored, by this one
    machine.run()
    retention = machine.manager.prefix_cache._retention  # type: ignore[attr-defined]
    assert retention.num_hinted_blocks == 2

    machine.manager.begin_step(90)
    machine.add([3] * 20, max_tokens=1)
    machine.run()
    machine.manager.begin_step(150)
    assert retention.num_hinted_blocks == 2

    machine.manager.begin_step(300)
    assert retention.num_hinted_blocks == 0


def test_a_lease_to_the_end_of_a_prompt_begins_when_its_last_block_is_stored() -> None:
    machine = engine()
    request = machine.add([3] * 20, max_tokens=3, leases=(Lease(20, lifetime=1000), Lease(8, lifetime=10)))
    retention = machine.manager.prefix_cache._retention  # type: ignore[attr-defined]
    machine.step()
    assert not request.sequences[0].is_finished
    assert retention.num_hinted_blocks == 1

    machine.run()
    assert retention.num_hinted_blocks == 3


def test_an_aborted_requests_lease_is_forgotten() -> None:
    machine = engine()
    request = machine.add([3] * 20, max_tokens=3, leases=(Lease(20, lifetime=1000),))

    machine.scheduler.abort(request.request_id)

    assert not machine.manager._leases._asked
    assert machine.manager.prefix_cache._retention.num_hinted_blocks == 0  # type: ignore[attr-defined]


def test_leases_never_outgrow_their_share_of_the_pool() -> None:
    machine = engine(num_blocks=16, hint_share=0.25)
    for i in range(3):
        machine.add([3 + i] * 24, max_tokens=1, leases=(Lease(24, lifetime=1000),))
        machine.run()

    assert machine.manager.prefix_cache._retention.num_hinted_blocks == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_a_leased_block_that_goes_is_given_back_once(kind: PrefixCacheKind) -> None:
    index = Index(kind, hint_share=1.0)
    index.store(0, num_blocks=2)
    index.cache.retain(index.path(0, 2), 2 * SIZE, 1, 10)
    index.cache.evict(2)
    index.store(1)
    index.cache.retain(index.path(1, 1), SIZE, 1, 1000)

    index.cache.advance(100)

    index.cache.check_invariants()
    assert index.cache._retention.num_hinted_blocks == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_count_of_leased_blocks_is_found_out(kind: PrefixCacheKind) -> None:
    index = Index(kind)
    index.store(0)
    index.cache._retention.num_hinted_blocks = 1  # type: ignore[attr-defined]

    with pytest.raises(InvariantError, match="under a hint"):
        index.cache.check_invariants()
