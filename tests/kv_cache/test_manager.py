"""The manager's door: what it refuses, what it leaves unchanged, and what it checks."""

import pytest

from foreword.core.config import CacheConfig
from foreword.core.errors import InvariantError
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.kv_cache.events import AllBlocksCleared, BlockStored, EventLog
from foreword.kv_cache.explain import MissCause
from foreword.kv_cache.manager import KVCacheManager

SIZE = 8


def make_manager(num_blocks: int = 10, kind: str = "radix", events: EventLog | None = None) -> KVCacheManager:
    config = CacheConfig(num_blocks=num_blocks, block_size=SIZE, prefix_cache=kind)  # type: ignore[arg-type]
    return KVCacheManager(config, events)


def add_sequence(manager: KVCacheManager, sequence_id: int, tokens: list[int]) -> Sequence:
    ids = [TokenId(token) for token in tokens]
    sequence = Sequence(SequenceId(sequence_id), RequestId("r"), 0, ids, len(ids), SamplingParams(), seed=0)
    manager.register(sequence, b"")
    return sequence


def compute(manager: KVCacheManager, sequence: Sequence, num_tokens: int) -> None:
    assert manager.allocate_slots(sequence, num_tokens) is not None
    sequence.num_computed_tokens += num_tokens
    manager.commit(sequence)


def test_an_allocation_that_would_leave_too_few_blocks_changes_nothing() -> None:
    manager = make_manager()
    sequence = add_sequence(manager, 0, list(range(40)))

    assert manager.allocate_slots(sequence, 40, keep=6) is None

    assert not manager.holds(sequence)
    assert manager.pool.num_free == 10
    assert manager.stats.num_queries == 0
    manager.check_invariants()


def test_how_many_tokens_fit_counts_slots_room_and_copies() -> None:
    manager = make_manager(num_blocks=4, kind="none")
    parent = add_sequence(manager, 0, list(range(20)))
    compute(manager, parent, 12)

    assert manager.num_tokens_that_fit(parent, keep=0) == 4 + 16
    assert manager.num_tokens_that_fit(parent, keep=2) == 4
    assert manager.num_tokens_that_fit(parent, keep=3) == 4

    child = add_sequence(manager, 1, list(range(20)))
    manager.fork(parent, child, 12)
    assert manager.num_tokens_that_fit(parent, keep=0) == 4 + 8
    assert manager.num_tokens_that_fit(parent, keep=2) == 0


def test_a_fork_shares_every_block_until_one_of_the_two_writes() -> None:
    manager = make_manager(kind="none")
    parent = add_sequence(manager, 0, list(range(20)))
    compute(manager, parent, 12)
    child = add_sequence(manager, 1, list(range(20)))

    manager.fork(parent, child, 12)
    child.num_computed_tokens = 12
    assert manager.pool.num_held == 2
    allocation = manager.allocate_slots(child, 1)

    assert allocation is not None
    (copy,) = allocation.copies
    assert copy.source == manager.block_table(parent).ids[1]
    assert copy.destination == manager.block_table(child).ids[1]
    assert manager.pool.ref_count(copy.source) == 2  # held for the copy until the step is over
    manager.end_step()
    assert manager.pool.ref_count(copy.source) == 1
    assert manager.allocate_slots(parent, 1) is not None
    manager.check_invariants()


@pytest.mark.parametrize("wrong", ["parent holds nothing", "too much", "child holds blocks"])
def test_an_impossible_fork_is_refused(wrong: str) -> None:
    manager = make_manager()
    parent = add_sequence(manager, 0, list(range(20)))
    child = add_sequence(manager, 1, list(range(20)))
    if wrong != "parent holds nothing":
        compute(manager, parent, 12)
    if wrong == "child holds blocks":
        compute(manager, child, 1)

    with pytest.raises(InvariantError, match="cannot fork"):
        manager.fork(parent, child, 13 if wrong == "too much" else 12)

    manager.check_invariants()


def test_equal_blocks_computed_side_by_side_are_folded_into_one() -> None:
    manager = make_manager()
    first = add_sequence(manager, 0, list(range(20)))
    second = add_sequence(manager, 1, list(range(20)))
    for sequence in (first, second):
        assert manager.allocate_slots(sequence, 20) is not None
        sequence.num_computed_tokens = 20
    assert manager.pool.num_held == 6

    manager.commit(first)
    manager.commit(second)

    assert manager.block_table(first).ids[:2] == manager.block_table(second).ids[:2]
    assert manager.pool.num_held == 4
    assert manager.stats.deduplicated_blocks == 2
    manager.check_invariants()


def test_a_tail_that_another_sequence_still_writes_to_is_not_made_findable() -> None:
    manager = make_manager()
    parent = add_sequence(manager, 0, list(range(20)))
    compute(manager, parent, 20)
    child = add_sequence(manager, 1, list(range(20)))
    manager.fork(parent, child, 19)
    child.num_computed_tokens = 19

    manager.free(parent)
    assert manager.match(add_sequence(manager, 2, list(range(30)))).num_tokens == 16

    manager.free(child)
    assert manager.match(add_sequence(manager, 3, list(range(30)))).num_tokens == 19
    manager.free(child)
    manager.check_invariants()


def test_retained_prefixes_outlive_those_that_are_not() -> None:
    manager = make_manager(num_blocks=8)
    for name, run in enumerate((list(range(16)), list(range(100, 132)))):
        sequence = add_sequence(manager, name, run)
        compute(manager, sequence, len(run))
        manager.forget(sequence)
    tokens = [TokenId(token) for token in range(16)]

    assert manager.retain(b"", tokens, priority=1, lifetime=50) == 16
    big = add_sequence(manager, 9, list(range(200, 248)))
    compute(manager, big, 48)

    assert manager.query(b"", tokens) == 15


def test_a_wrong_count_of_holders_is_found_out() -> None:
    manager = make_manager()
    sequence = add_sequence(manager, 0, [1, 2])
    compute(manager, sequence, 2)

    manager.pool.acquire(manager.block_table(sequence).ids)

    with pytest.raises(InvariantError, match="1 holders, counted 2"):
        manager.check_invariants()


def test_events_tell_what_became_findable_and_what_ceased_to_be() -> None:
    log = EventLog(capacity=3)
    manager = make_manager(events=log)
    sequence = add_sequence(manager, 0, list(range(20)))
    compute(manager, sequence, 8)
    compute(manager, sequence, 12)
    manager.forget(sequence)

    (zero, first), (one, second) = log.take()

    assert (zero, one) == (0, 1)
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert first.parent_block_hash is None
    assert first.token_ids == tuple(range(8))
    assert second.parent_block_hash == first.block_hashes[0]
    assert second.block_size == SIZE
    manager.prefix_cache.evict(2)
    manager.prefix_cache.evict(1)
    manager.reset()
    manager.reset()
    manager.reset()
    taken = log.take()
    assert [number for number, _ in taken] == [4, 5, 6]  # 2 and 3 did not fit, and it shows
    assert all(isinstance(event, AllBlocksCleared) for _, event in taken)
    assert log.take() == []


def test_what_was_stored_of_a_prompt_that_is_begun_is_told_of_its_sequence() -> None:
    manager = make_manager()
    first = add_sequence(manager, 0, list(range(20)))
    compute(manager, first, 20)
    manager.forget(first)
    second = add_sequence(manager, 1, [*range(10), 99, *range(11, 20)])

    report = manager.explain_start(second)

    assert report == manager.explain(b"", second.token_ids)
    assert report.cause is not MissCause.NONE
    assert manager.match(second).num_tokens == report.matched_tokens > 0


def test_a_block_that_two_pins_hold_is_counted_once() -> None:
    manager = make_manager()
    sequence = add_sequence(manager, 0, list(range(20)))
    compute(manager, sequence, 20)
    manager.forget(sequence)
    pins = [manager.pin(b"", sequence.token_ids), manager.pin(b"", sequence.token_ids)]

    assert manager.num_pinned_blocks == manager.pool.num_held == 2
    for pin in pins:
        assert pin is not None
        manager.unpin(pin)
    assert manager.num_pinned_blocks == 0
