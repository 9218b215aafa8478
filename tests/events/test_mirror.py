"""A mirror built from the wire alone: equal to the index at every step, and honest about what it has missed."""

import random

import msgspec
import pytest

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import InvalidRequestError
from foreword.events import mirror as mirror_module
from foreword.events.encoder import EventEncoder
from foreword.events.mirror import EventMirror
from foreword.kv_cache.events import CacheEvent
from foreword.kv_cache.hash_prefix_cache import HashPrefixCache
from foreword.kv_cache.radix_prefix_cache import RadixPrefixCache
from tests.oracles.engine import SimulatedEngine


def random_operation(rng: random.Random, engine: SimulatedEngine, openings: list[list[int]]) -> None:
    """Create (forked one time in three), abort, reset or step; the pool is small, so steps preempt and evict."""
    chance = rng.random()
    if chance < 0.2 and engine.scheduler.num_waiting < 10:
        tenant = rng.choice([b"a", b"b", b"c"])
        prompt = rng.choice(openings)[: rng.randrange(1, 80)] + [rng.randrange(1000) for _ in range(rng.randrange(5))]
        engine.add(prompt, n=rng.choice([1, 1, 3]), max_tokens=rng.randrange(1, 150), namespace=tenant, tenant=tenant)
    elif chance < 0.25 and engine.requests:
        engine.scheduler.abort(rng.choice(list(engine.requests.values())[-12:]).request_id)
    elif chance < 0.252:
        engine.manager.reset()
    else:
        engine.step()


def drop_ended(engine: SimulatedEngine) -> None:
    for name in [n for n, r in engine.requests.items() if all(s.is_finished for s in r.sequences)]:
        del engine.requests[name]
    engine.outputs.clear()


@pytest.mark.parametrize(("kind", "form"), [("radix", "map"), ("hash", "array")])
def test_over_ten_thousand_operations_the_mirror_equals_the_index_at_each_step(kind: str, form: str) -> None:
    rng = random.Random(11)
    cache = CacheConfig(num_blocks=40, prefix_cache=kind, tenant_share=0.7)  # type: ignore[arg-type]
    settings = SchedulerConfig(max_num_seqs=8, token_budget=64, max_model_len=6000, watermark=0.0)
    engine = SimulatedEngine(cache, settings)
    index = engine.manager.prefix_cache
    assert isinstance(index, RadixPrefixCache | HashPrefixCache)
    encoder, mirror = EventEncoder(form), EventMirror()  # type: ignore[arg-type]
    openings = [[rng.randrange(1000) for _ in range(120)] for _ in range(3)]
    sequence = removed = 0

    for _ in range(10_000):
        random_operation(rng, engine, openings)
        drop_ended(engine)
        events = engine.events.take()
        if events:
            assert mirror.receive(sequence, encoder.encode(0.0, [event for _, event in events]))
            sequence += 1
            removed += sum("Removed" in type(event).__name__ for _, event in events)
        assert mirror.hashes == set(index.stored_hashes())

    assert mirror.is_exact
    assert removed > 1_000
    assert engine.scheduler.counters.num_preemptions > 20
    engine.manager.reset()
    mirror.receive(sequence, encoder.encode(0.0, [event for _, event in engine.events.take()]))
    assert mirror.hashes == set()


def batches() -> list[bytes]:
    """Six batches of a small engine that stores and evicts."""
    engine = SimulatedEngine(CacheConfig(num_blocks=6, prefix_cache="radix"), SchedulerConfig(max_model_len=96))
    encoder = EventEncoder()
    found: list[list[CacheEvent]] = []
    for start in range(0, 600, 100):
        engine.add(list(range(start, start + 50)), max_tokens=1)
        engine.run()
        found.append([event for _, event in engine.events.take()])
    return [encoder.encode(0.0, events) for events in found]


def mirror_of(payloads: list[bytes]) -> EventMirror:
    mirror = EventMirror()
    for sequence, payload in enumerate(payloads):
        mirror.receive(sequence, payload)
    return mirror


def test_a_dropped_batch_is_a_gap_until_it_is_replayed() -> None:
    sent, mirror = batches(), EventMirror()
    whole = mirror_of(sent)

    for sequence in (0, 1, 4):
        complete = mirror.receive(sequence, sent[sequence])
    assert not complete
    assert mirror.missing == range(2, 4)
    assert mirror.hashes == mirror_of(sent[:2]).hashes
    for sequence in (1, 2, 3, 4):
        complete = mirror.receive(sequence, sent[sequence], replayed=True)

    assert complete
    assert mirror.receive(5, sent[5])
    assert mirror.hashes == whole.hashes != set()
    assert mirror.is_exact


def test_what_no_replay_has_is_skipped_and_makes_the_mirror_inexact_until_all_is_cleared() -> None:
    sent, mirror = batches(), EventMirror()
    mirror.receive(0, sent[0])
    mirror.receive(2, sent[2])
    mirror.receive(4, sent[4])

    mirror.skip_missing()

    assert not mirror.missing
    assert not mirror.is_exact
    assert mirror.next_sequence == 5
    assert mirror.receive(5, msgspec.msgpack.encode([0.0, [{"type": "AllBlocksCleared"}]]))
    assert mirror.is_exact
    assert mirror.hashes == set()


def test_a_gap_that_nobody_fills_does_not_hold_back_batches_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "MAX_WAITING", 3)
    mirror = EventMirror()
    empty = msgspec.msgpack.encode([0.0, []])

    for sequence in range(1, 4):
        assert not mirror.receive(sequence, empty)
    assert mirror.receive(4, empty)

    assert not mirror.is_exact
    assert mirror.next_sequence == 5


def test_a_publisher_that_starts_again_empties_the_mirror() -> None:
    sent = batches()
    mirror = mirror_of(sent)

    assert not mirror.receive(1, sent[1])

    assert mirror.hashes == set()
    assert mirror.missing == range(0, 1)
    assert mirror.receive(0, sent[0], replayed=True)
    assert mirror.hashes == mirror_of(sent[:2]).hashes


def test_what_other_engines_may_add_is_left_alone() -> None:
    events = [
        {"type": "BlockMigrated", "block_hashes": [1]},
        ["Later", 5],
        {"type": "BlockStored", "block_hashes": [7]},
    ]

    mirror = mirror_of([msgspec.msgpack.encode([0.0, events, 0, "later"])])

    assert mirror.hashes == {7}


@pytest.mark.parametrize(
    "batch",
    [
        5,
        [],
        [0.0],
        [0.0, 5],
        [0.0, [5]],
        [0.0, [[]]],
        [0.0, [{"type": "BlockStored"}]],
        [0.0, [["BlockRemoved"]]],
        [0.0, [{"type": "BlockStored", "block_hashes": [1, "x"]}]],
        [0.0, [{"type": "BlockStored", "block_hashes": [True]}]],
        [0.0, [{"type": "BlockStored", "block_hashes": [1]}, {"type": "BlockRemoved", "block_hashes": 3}]],
    ],
)
def test_what_is_no_batch_changes_nothing(batch: object) -> None:
    sent = batches()
    mirror = mirror_of(sent)
    before = set(mirror.hashes)

    with pytest.raises(InvalidRequestError):
        mirror.receive(6, msgspec.msgpack.encode(batch))

    assert mirror.hashes == before
    assert mirror.next_sequence == 6


def test_random_bytes_and_numbers_change_nothing() -> None:
    rng = random.Random(3)
    mirror = mirror_of(batches())
    before = set(mirror.hashes)

    for _ in range(1_000):
        with pytest.raises(InvalidRequestError):
            mirror.receive(6, rng.randbytes(rng.randrange(60)))
    with pytest.raises(InvalidRequestError):
        mirror.receive(6, b"\x91" * 100_000)
    with pytest.raises(InvalidRequestError):
        mirror.receive(-1, msgspec.msgpack.encode([0.0, []]))

    assert mirror.hashes == before
    assert mirror.next_sequence == 6
