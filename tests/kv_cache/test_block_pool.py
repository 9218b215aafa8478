"""Law 1: every block is free, held or cached, and no operation can make it two of them."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from foreword.core.errors import InvariantError
from foreword.core.types import BlockId
from foreword.kv_cache.block_pool import BlockPool


def test_too_many_blocks_are_refused_and_none_is_taken() -> None:
    pool = BlockPool(3)

    assert pool.allocate(4) is None
    assert pool.num_free == 3
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(0) == []
    assert pool.allocate(1) is None


def test_free_blocks_are_those_nobody_holds_or_can_find() -> None:
    pool = BlockPool(4)
    taken = pool.allocate(3)
    assert taken is not None
    pool.publish(taken[:1])

    pool.release(taken[:2])

    assert pool.free_blocks() == {3, taken[1]}


def test_a_double_free_raises() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.release(blocks)

    with pytest.raises(InvariantError, match="released more often than acquired"):
        pool.release(blocks)
    pool.check_invariants()


def test_a_free_block_can_be_neither_acquired_nor_published_nor_withdrawn() -> None:
    pool = BlockPool(1)

    operations: list[Callable[[], None]] = [
        lambda: pool.acquire([0]),
        lambda: pool.publish([0]),
        lambda: pool.withdraw(0),
    ]
    for operation in operations:
        with pytest.raises(InvariantError):
            operation()

    pool.check_invariants()


def test_the_block_released_last_is_reused_first_and_findable_ones_are_kept() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    assert blocks is not None
    pool.publish([blocks[1]])

    pool.release(blocks)

    assert (pool.num_free, pool.num_cached, pool.num_held, pool.num_available) == (2, 1, 0, 3)
    assert pool.allocate(2) == [2, 0]
    assert list(pool.findable_blocks()) == [1]


@pytest.mark.parametrize("damage", ["refs", "twice", "lost", "count"])
def test_check_invariants_finds_damage(damage: str) -> None:
    pool = BlockPool(3)
    if damage == "refs":
        pool._ref_counts[0] = 1
    elif damage == "twice":
        pool._free.append(0)
    elif damage == "lost":
        pool._free.pop()
    else:
        pool._num_cached = 1

    with pytest.raises(InvariantError):
        pool.check_invariants()


class PoolMachine(RuleBasedStateMachine):
    """The real pool beside a dictionary of counts and a set of findable blocks."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.refs = dict.fromkeys(range(num_blocks), 0)
        self.findable: set[int] = set()

    def free(self) -> set[int]:
        return {block for block, refs in self.refs.items() if refs == 0} - self.findable

    @rule(count=st.integers(0, 9))
    def allocate(self, count: int) -> None:
        free = self.free()
        blocks = self.pool.allocate(count)
        if count > len(free):
            assert blocks is None
            return
        assert blocks is not None
        assert len(set(blocks)) == count
        assert set(blocks) <= free
        for block in blocks:
            self.refs[block] = 1

    @rule(block=st.integers(0, 7), operation=st.sampled_from(["acquire", "release", "publish", "withdraw"]))
    def touch(self, block: int, operation: str) -> None:
        if block not in self.refs:
            return
        held, findable = self.refs[block] > 0, block in self.findable
        allowed = {
            "acquire": held or findable,
            "release": held,
            "publish": held and not findable,
            "withdraw": findable,
        }[operation]
        argument = BlockId(block) if operation == "withdraw" else [BlockId(block)]
        if not allowed:
            with pytest.raises(InvariantError):
                getattr(self.pool, operation)(argument)
            return
        getattr(self.pool, operation)(argument)
        self.refs[block] += {"acquire": 1, "release": -1}.get(operation, 0)
        if operation == "publish":
            self.findable.add(block)
        self.findable -= {block} if operation == "withdraw" else set()

    @invariant()
    def law_1_free_held_and_cached_make_up_the_pool(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        held = {block for block, refs in self.refs.items() if refs}
        assert self.pool.num_free == len(self.free())
        assert self.pool.num_held == len(held)
        assert self.pool.num_cached == len(self.findable - held)
        assert self.pool.num_free + self.pool.num_held + self.pool.num_cached == self.pool.num_blocks
        for block, refs in self.refs.items():
            assert self.pool.ref_count(block) == refs
            assert self.pool.is_findable(block) == (block in self.findable)
            assert self.pool.is_writable(block) == (refs == 1 and block not in self.findable)


TestPoolMachine = PoolMachine.TestCase
