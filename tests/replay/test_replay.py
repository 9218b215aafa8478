"""Replays of real and made-up traces: exact counts, both ways round, whole results."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.config import CacheConfig, PrefixCacheKind, RetentionKind
from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.replay.index_replay import IndexReplay
from foreword.replay.layout import Layout, layout_for
from foreword.replay.replay import ReplayOptions, replay
from foreword.replay.scheduler_replay import SchedulerReplay
from foreword.replay.tally import Tally
from foreword.replay.trace import ReplayRequest, Trace, TraceOptions
from tests.replay.data import AGENTIC, AIRLINE, CONVERSATION, SYNTHETIC, in_deep_runs, needs_data

POLICIES: tuple[RetentionKind, ...] = ("slru", "lru", "lfu", "cost")
SHRUNK = Layout(block_size=16, index_block=16, symbol_tokens=1, symbols_an_id=16)


def shrunk(path: Path, max_requests: int | None = None) -> Iterator[tuple[list[int], ReplayRequest]]:
    """Each 512-token id of a Mooncake trace as one block of 16 seeded random tokens."""
    tokens = np.random.default_rng(0).integers(0, 49_152, (200_000, 16), np.int32)
    with path.open() as file:
        for line in itertools.islice(file, max_requests):
            ids = json.loads(line)["hash_ids"]
            yield ids, ReplayRequest(b"", tokens[ids].tobytes(), 16 * len(ids))


def leading_seen(ids: list[int], seen: set[int]) -> int:
    """Leading ids seen before; in these traces an id has one place, so it stands for its whole prefix."""
    hits = len(list(itertools.takewhile(seen.__contains__, ids)))
    seen.update(ids)
    return hits


def run_shrunk(path: Path, kind: PrefixCacheKind, max_requests: int | None = None) -> tuple[Tally, int]:
    """Counts of the real scheduler and manager with a large pool, and hits by definition."""
    config = CacheConfig(num_blocks=320_000, block_size=16, prefix_cache=kind)
    engine = SchedulerReplay(config, SHRUNK)
    seen: set[int] = set()
    expected = 0
    for ids, request in shrunk(path, max_requests):
        before, hits = engine.tally.hit_blocks, leading_seen(ids, seen)
        engine.run(request)
        expected += hits
        assert engine.tally.hit_blocks - before >= hits
        assert kind == "radix" or engine.tally.hit_blocks - before == hits
    engine.manager.check_invariants()
    return engine.tally, expected


@needs_data
def test_shrunk_synthetic_trace_hits_exactly_what_it_must() -> None:
    tally, expected = run_shrunk(SYNTHETIC, "hash")

    assert (tally.hit_blocks, tally.blocks, expected) == (77_953, 121_877, 77_953)


@needs_data
def test_start_of_the_shrunk_conversation_trace_hits_exactly_what_it_must() -> None:
    tally, expected = run_shrunk(CONVERSATION, "hash", 3000)

    assert tally.hit_blocks == expected > 10_000


@needs_data
def test_radix_finds_no_less_than_hash() -> None:
    tally, expected = run_shrunk(SYNTHETIC, "radix", 2000)

    assert tally.hit_blocks == expected > 10_000
    assert tally.hit_tokens >= 16 * expected


@needs_data
@in_deep_runs
@pytest.mark.deep
@pytest.mark.parametrize("kind", ["hash", "radix"])
@pytest.mark.parametrize(("path", "hits", "blocks"), [(CONVERSATION, 105_710, 288_500), (SYNTHETIC, 77_953, 121_877)])
def test_shrunk_traces_in_full(kind: PrefixCacheKind, path: Path, hits: int, blocks: int) -> None:
    tally, _ = run_shrunk(path, kind)

    assert tally.blocks == blocks
    assert tally.hit_blocks == hits if kind == "hash" else tally.hit_blocks >= hits


@needs_data
@in_deep_runs
@pytest.mark.deep
@pytest.mark.parametrize("path", [CONVERSATION, SYNTHETIC])
def test_the_default_policy_is_never_below_lru_on_mooncake(path: Path) -> None:
    options = ReplayOptions(policies=("slru", "lru"), capacities=(3000, 10_000, 30_000), optimum=False)

    result = replay(Trace(path, TraceOptions()), options)

    for ours, lru in zip(result.of_policy("slru"), result.of_policy("lru"), strict=True):
        assert ours.tally.hit_blocks >= lru.tally.hit_blocks


@needs_data
def test_lru_hits_what_was_measured_elsewhere() -> None:
    """19.1 % and 42.4 % of 121,877 blocks, by another program, stand in the traces' own README."""
    options = ReplayOptions(policies=("lru",), capacities=(3000, 10_000), optimum=False)

    result = replay(Trace(SYNTHETIC, TraceOptions()), options)

    assert [round(row.tally.block_hit_ratio, 3) for row in result.of_policy("lru")] == [0.191, 0.424]
    assert result.unbounded.hit_blocks == 77_953
    assert round(result.unbounded.token_hit_ratio, 4) == 0.6512


@needs_data
@pytest.mark.parametrize("path", [AGENTIC, AIRLINE], ids=["kv-cache-tester", "tau-bench"])
def test_other_formats_replay(path: Path) -> None:
    options = ReplayOptions(policies=("slru",), capacities=(60_000,))

    result = replay(Trace(path, TraceOptions(max_requests=150)), options)

    (ours,), (best,) = result.of_policy("slru"), result.of_policy("optimum")
    assert result.unbounded.requests == ours.tally.requests == best.tally.requests == 150
    assert 0.7 < ours.tally.block_hit_ratio <= best.tally.block_hit_ratio <= result.unbounded.block_hit_ratio


BLOCKS = layout_for(16, None)
TRACES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple), min_size=1, max_size=40)


def of_blocks(ids: tuple[int, ...]) -> ReplayRequest:
    return ReplayRequest(b"", np.repeat(np.array(ids, np.int32), 8).tobytes(), 16 * len(ids))


@given(TRACES, st.integers(5, 20), st.sampled_from(["lru", "lfu", "cost"]))
def test_the_short_way_counts_what_the_long_way_counts(
    trace: list[tuple[int, ...]], capacity: int, policy: RetentionKind
) -> None:
    """Block for block, under pressure: `hash` drops the last token's block at once, so one more block is all it costs.

    Segmented LRU takes part of its pool as a limit, which that block would change.
    """
    short = IndexReplay(CacheConfig(num_blocks=capacity, block_size=8, prefix_cache="hash", retention=policy), BLOCKS)
    config = CacheConfig(num_blocks=capacity + 1, block_size=8, prefix_cache="hash", retention=policy)
    long = SchedulerReplay(config, BLOCKS)

    for ids in trace:
        short.run(of_blocks(ids))
        long.run(of_blocks(ids))

    assert short.tally == long.tally


TOKENS = layout_for(None, 8)
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), min_size=1, max_size=30)


@given(PROMPTS, st.integers(6, 20), st.sampled_from(POLICIES), st.sampled_from(["radix", "hash"]))
def test_on_tokens_both_ways_agree_to_the_token(
    prompts: list[list[int]], capacity: int, policy: RetentionKind, kind: PrefixCacheKind
) -> None:
    config = CacheConfig(num_blocks=capacity, block_size=8, prefix_cache=kind, retention=policy)
    short, long = IndexReplay(config, TOKENS), SchedulerReplay(config, TOKENS)

    for prompt in prompts:
        request = ReplayRequest(b"", np.array(prompt, np.int32).tobytes(), len(prompt))
        short.run(request)
        long.run(request)
        short.prefix_cache.check_invariants()
        assert short.pool.num_held == 0

    assert short.tally == long.tally


def plain_trace(path: Path, *prompts: list[int]) -> Path:
    path.write_text("".join(json.dumps({"block_ids": ids, "block_tokens": 32}) + "\n" for ids in prompts))
    return path


def test_a_result_holds_every_policy_and_capacity_beside_the_bounds(tmp_path: Path) -> None:
    path = plain_trace(tmp_path / "t.jsonl", [1, 2], [3], [1, 2, 4], [1, 2])

    result = replay(Trace(path, TraceOptions()), ReplayOptions(policies=POLICIES, capacities=(3, 4)))

    assert result.as_json()["infinite"] == {
        "requests": 4,
        "refused": 0,
        "tokens": 256,
        "hit_tokens": 128,
        "token_hit_ratio": 0.5,
        "blocks": 8,
        "hit_blocks": 4,
        "block_hit_ratio": 0.5,
        "evicted_blocks": 0,
    }
    assert {(row.policy, row.capacity) for row in result.rows} == set(itertools.product((*POLICIES, "optimum"), (3, 4)))
    assert [row.tally.hit_blocks for row in result.of_policy("optimum")] == [4, 4]
    assert json.loads(json.dumps(result.as_json()))["distinct_blocks"] == 4


def test_block_size_changes_the_count_and_not_the_share(tmp_path: Path) -> None:
    path = plain_trace(tmp_path / "t.jsonl", [1, 2], [1, 2, 3, 4], [1, 2, 5, 6])

    shares = set()
    for block_size, blocks in ((16, 20), (32, 10), (64, 5)):
        result = replay(
            Trace(path, TraceOptions(block_size=block_size)), ReplayOptions(capacities=(100,), policies=("lru",))
        )
        (row,) = result.of_policy("lru")
        assert result.unbounded.blocks == blocks
        assert row.tally.hit_blocks == result.unbounded.hit_blocks
        shares.add(row.tally.token_hit_ratio)
    assert shares == {0.4}


def test_default_capacities_hold_the_longest_request_and_end_at_the_whole_trace(tmp_path: Path) -> None:
    path = plain_trace(tmp_path / "t.jsonl", *([number * 10 + i for i in range(10)] for number in range(50)))

    result = replay(Trace(path, TraceOptions()), ReplayOptions())

    assert [row.capacity for row in result.of_policy("slru")] == [11, 15, 50, 150, 500]


def test_a_request_longer_than_the_pool_is_counted_and_refused(tmp_path: Path) -> None:
    path = plain_trace(tmp_path / "t.jsonl", [1, 2, 3], [1], [1])

    for scheduler in (False, True):
        result = replay(Trace(path, TraceOptions()), ReplayOptions(capacities=(2,), scheduler=scheduler))
        assert [(row.tally.refused, row.tally.blocks, row.tally.hit_blocks) for row in result.rows] == [(1, 5, 1)] * 2


def test_a_trace_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = plain_trace(tmp_path / "t.jsonl", [1], [2])

    def shorten(what: str, done: float) -> None:
        if done == 1.0 and what == "reading":
            plain_trace(path, [1])

    with pytest.raises(ForewordError, match="changed while it was read"):
        replay(Trace(path, TraceOptions()), ReplayOptions(capacities=(9,)), shorten)


def test_conversations_that_nobody_answers_hold_no_request_and_it_says_why(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Name one lake."}]}) + "\n")

    with pytest.raises(ForewordError, match="holds no request: each ends before a turn of the assistant"):
        replay(Trace(path, TraceOptions()), ReplayOptions())


def test_capacities_and_block_sizes_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="capacity: expected blocks from 1"):
        ReplayOptions(capacities=(0,))
    path = tmp_path / "t"
    path.write_text('{"token_ids": [1]}\n')
    with pytest.raises(InvalidRequestError, match="block_size: expected 8, 16"):
        replay(Trace(path, TraceOptions(block_size=7)), ReplayOptions(capacities=(9,)))
