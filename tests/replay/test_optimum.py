"""The tree of a trace and the clairvoyant optimum, against plain definitions."""

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.config import CacheConfig, RetentionKind
from foreword.replay.index_replay import IndexReplay
from foreword.replay.layout import layout_for
from foreword.replay.optimum import Optimum, Uses
from foreword.replay.prefix_tree import PrefixTree
from foreword.replay.trace import ReplayRequest

BLOCKS = layout_for(16, None)
TOKENS = layout_for(None, 8)

Prefix = tuple[int, ...]


def of_blocks(ids: Prefix) -> ReplayRequest:
    return ReplayRequest(b"", np.repeat(np.array(ids, np.int32), 8).tobytes(), 16 * len(ids))


def of_tokens(tokens: Prefix) -> ReplayRequest:
    return ReplayRequest(b"", np.array(tokens, np.int32).tobytes(), len(tokens))


def tree_of(requests: list[ReplayRequest], layout: object = BLOCKS) -> PrefixTree:
    tree = PrefixTree(layout)  # type: ignore[arg-type]
    for request in requests:
        tree.add(request)
    return tree


def prefixes(ids: Prefix) -> list[Prefix]:
    return [ids[:length] for length in range(1, len(ids) + 1)]


def most_hits(trace: list[Prefix], capacity: int) -> int:
    """Every choice of what to keep after each request, tried out."""

    @cache
    def best(number: int, kept: frozenset[Prefix]) -> int:
        if number == len(trace):
            return 0
        own = prefixes(trace[number])
        if len(own) > capacity:
            return best(number + 1, kept)
        hits = len(list(itertools.takewhile(kept.__contains__, own)))
        others = sorted(kept - set(own))
        num_kept = min(len(others), capacity - len(own))
        choices = itertools.combinations(others, num_kept)
        return hits + max(best(number + 1, frozenset(choice).union(own)) for choice in choices)

    return best(0, frozenset())


SHORT_TRACES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), min_size=1, max_size=7)


@given(SHORT_TRACES, st.integers(1, 6))
def test_the_optimum_equals_the_best_of_all_choices(trace: list[Prefix], capacity: int) -> None:
    tree = tree_of([of_blocks(ids) for ids in trace])

    tally = Optimum(tree, Uses(tree), capacity).run()

    assert tally.hit_blocks == most_hits(trace, capacity)
    assert tally.refused == sum(len(ids) > capacity for ids in trace)


LONG_TRACES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple), min_size=1, max_size=60)


@given(
    LONG_TRACES, st.integers(6, 25), st.sampled_from(["slru", "lru", "lfu", "cost"]), st.sampled_from(["radix", "hash"])
)
def test_no_policy_beats_the_optimum(trace: list[Prefix], capacity: int, policy: RetentionKind, index: str) -> None:
    requests = [of_blocks(ids) for ids in trace]
    tree = tree_of(requests)
    config = CacheConfig(num_blocks=capacity, block_size=8, prefix_cache=index, retention=policy)  # type: ignore[arg-type]
    replay = IndexReplay(config, BLOCKS)

    for request in requests:
        replay.run(request)

    best = Optimum(tree, Uses(tree), capacity).run()
    assert replay.tally.hit_blocks <= best.hit_blocks <= tree.unbounded.hit_blocks
    assert replay.tally.blocks == best.blocks == tree.unbounded.blocks
    assert replay.tally.tokens == best.tokens == tree.unbounded.tokens


@given(LONG_TRACES)
def test_a_cache_without_bounds_finds_every_leading_block_seen_before(trace: list[Prefix]) -> None:
    seen: set[Prefix] = set()
    hits = 0
    for ids in trace:
        hits += sum(prefix in seen for prefix in prefixes(ids))
        seen.update(prefixes(ids))

    tree = tree_of([of_blocks(ids) for ids in trace])

    assert tree.unbounded.hit_blocks == hits
    assert tree.distinct_blocks == len(seen)
    assert Optimum(tree, Uses(tree), len(seen) + 1).run().hit_blocks == hits


def test_the_last_token_is_never_a_hit_where_the_trace_has_tokens() -> None:
    tree = tree_of([of_tokens(tuple(range(16)))] * 2, TOKENS)

    assert (tree.unbounded.blocks, tree.unbounded.hit_blocks) == (4, 1)
    assert Optimum(tree, Uses(tree), 2).run().hit_blocks == 1


def test_a_last_block_that_is_not_full_takes_room_while_its_request_runs() -> None:
    a, b = of_tokens(tuple(range(17))), of_tokens(tuple(range(100, 117)))
    tree = tree_of([a, b, a, b], TOKENS)

    assert tree.longest == 3
    assert Optimum(tree, Uses(tree), 5).run().hit_blocks == 4
    assert Optimum(tree, Uses(tree), 4).run().hit_blocks == 2
    assert Optimum(tree, Uses(tree), 2).run().refused == 4


def test_namespaces_share_nothing() -> None:
    tree = PrefixTree(BLOCKS)
    one = of_blocks((1, 2))
    tree.add(one)
    tree.add(ReplayRequest(b"other", one.packed, one.num_tokens))

    assert tree.unbounded.hit_blocks == 0


@pytest.mark.parametrize(("capacity", "hits", "evicted"), [(3, 3, 4), (4, 4, 2), (5, 5, 0)])
def test_worked_example(capacity: int, hits: int, evicted: int) -> None:
    tree = tree_of([of_blocks(ids) for ids in ((1, 2), (3,), (1, 4, 5), (3,), (1, 2), (3,))])

    tally = Optimum(tree, Uses(tree), capacity).run()

    assert (tally.hit_blocks, tally.evicted_blocks) == (hits, evicted)
