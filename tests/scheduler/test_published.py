"""Published prefixes: everybody reads them, whole, and nothing of anybody else through them (S-C5)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.core.sequence import Request
from foreword.core.types import TokenId
from foreword.kv_cache.explain import MissCause
from foreword.kv_cache.published import PUBLISHED
from tests.oracles.engine import SimulatedEngine
from tests.oracles.simulated_model import sequential_generate
from tests.scheduler.test_prefix_reuse import cached, make_engine, text

SIZE = 16
LISTED = text(7, 40)  # two whole blocks and a half
WHOLE = 32


def make(**options: object) -> SimulatedEngine:
    """An engine whose rows do not depend on the namespace, as real K and V do not."""
    engine = make_engine(**options)  # type: ignore[arg-type]
    start = engine.runner.start
    engine.runner.start = lambda name, namespace, *rest: start(name, b"", *rest)  # type: ignore[method-assign]
    return engine


def assert_exact(request: Request) -> None:
    for sequence in request.sequences:
        got = sequence.token_ids[sequence.prompt_len :]
        assert got == sequential_generate(b"", request.prompt_token_ids, len(got), sequence.index, 7)


def publish(engine: SimulatedEngine, prefix: list[int]) -> int:
    ids = [TokenId(token) for token in prefix]
    engine.add(prefix, max_tokens=1, namespace=PUBLISHED)
    engine.run()
    return engine.manager.published.add(ids, engine.manager.prefix_cache)


def read(engine: SimulatedEngine, tenant: bytes, prompt: list[int], **params: object) -> int:
    request = engine.add(prompt, namespace=tenant, tenant=tenant, **{"max_tokens": 3, **params})  # type: ignore[arg-type]
    engine.run()
    assert_exact(request)
    engine.manager.check_invariants()
    return cached(request)


def test_every_tenant_reads_the_listed_prefix_and_nothing_of_another_behind_it() -> None:
    engine = make()
    assert publish(engine, LISTED) == WHOLE
    secret = [*LISTED, *text(8, 40)]

    assert read(engine, b"a", secret) == WHOLE
    assert read(engine, b"b", secret) == WHOLE  # not one token more, though a has stored all of it
    assert read(engine, b"c", [*LISTED, *text(8, 39), 5]) == WHOLE
    assert read(engine, b"a", secret) == len(secret) - 1  # and one's own is still found, to the token
    assert read(engine, b"b", [*secret, 1, 2]) == len(secret)
    assert read(engine, b"d", [*LISTED, 1]) == WHOLE  # the half block behind the whole ones is nobody's


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32])
def test_a_part_of_a_listed_prefix_finds_nothing_of_others(length: int) -> None:
    engine = make()
    publish(engine, LISTED)
    read(engine, b"a", [*LISTED[:length], *text(8, 20)])

    assert read(engine, b"b", LISTED[:length] + text(9, 20)) == (WHOLE if length == WHOLE else 0)
    assert read(engine, b"c", LISTED[:length]) == 0
    assert read(engine, b"a", [*LISTED[:length], *text(8, 20)]) == length + 19


def test_the_longest_of_several_goes_first_and_they_share_their_blocks() -> None:
    engine = make()
    assert publish(engine, LISTED[:WHOLE]) == WHOLE
    longer = [*LISTED[:WHOLE], *text(3, 32)]
    assert publish(engine, longer) == 64
    assert publish(engine, longer) == 64  # again is once

    assert engine.manager.published.num_blocks == 4
    assert read(engine, b"a", [*longer, 1]) == 64
    assert read(engine, b"a", [*longer[:60], 1, 2]) == WHOLE
    assert read(engine, b"b", [*longer[:60], 1, 2]) == WHOLE


def test_a_prefix_without_a_whole_block_is_not_published() -> None:
    engine = make()

    assert publish(engine, text(1, 15)) == 0
    assert engine.manager.published.num_blocks == 0


def test_no_flood_and_no_reset_takes_it_away() -> None:
    engine = make(num_blocks=30, max_model_len=320)
    publish(engine, LISTED)

    for seed in range(20):
        read(engine, b"flood", text(100 + seed, 300))
    assert read(engine, b"a", [*LISTED, 1, 2, 3]) == WHOLE
    engine.manager.reset()
    assert read(engine, b"a", [*LISTED, 1, 2, 3]) == WHOLE
    assert engine.manager.pool.num_held == 2


def test_prompt_logprobs_are_computed_and_leave_the_rest_findable() -> None:
    engine = make()
    publish(engine, LISTED)
    prompt = [*LISTED, *text(8, 30)]

    assert read(engine, b"a", prompt, prompt_logprobs=0) == 0
    assert read(engine, b"a", prompt) == len(prompt) - 1
    assert read(engine, b"b", prompt) == WHOLE


def test_what_is_asked_of_the_cache_counts_it_too() -> None:
    engine = make()
    publish(engine, LISTED)
    prompt = [TokenId(token) for token in [*LISTED, *text(8, 30)]]
    manager = engine.manager

    assert manager.query(b"a", prompt) == WHOLE
    report = manager.explain(b"a", prompt)
    assert (report.matched_tokens, report.cause, report.wanted_token) == (WHOLE, MissCause.NEVER_SEEN, prompt[WHOLE])
    read(engine, b"a", [int(token) for token in prompt])
    assert manager.query(b"a", prompt) == len(prompt) - 1
    assert manager.explain(b"a", prompt).cause is MissCause.NONE
    assert manager.explain(b"b", prompt).matched_tokens == WHOLE


def test_forks_and_beginnings_at_the_same_time_stay_exact() -> None:
    engine = make(num_blocks=60, max_num_seqs=6)
    publish(engine, LISTED)
    requests = [
        engine.add(
            [*LISTED, *text(seed % 3, 20)], max_tokens=9, n=2, temperature=1, seed=seed, namespace=b"%d" % (seed % 2)
        )
        for seed in range(6)
    ]
    engine.run()

    for request in requests:
        assert_exact(request)
        assert cached(request) >= WHOLE
    engine.manager.check_invariants()


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.integers(20, 60))
def test_whatever_tenants_ask_answers_are_exact_and_reads_are_ones_own_or_listed(
    rng: random.Random, num_blocks: int
) -> None:
    engine = make(num_blocks=num_blocks, max_model_len=120, max_num_seqs=3)
    publish(engine, LISTED)
    said: dict[bytes, list[list[int]]] = {b"a": [], b"b": []}
    for _ in range(12):
        tenant = rng.choice([b"a", b"b"])
        opening = LISTED[: rng.choice([0, 10, 16, 32, 33, 40])]
        prompt = [*opening, *text(rng.randrange(3), rng.randrange(1, 30))]
        found = read(engine, tenant, prompt)
        own = max((shared(prompt, other) for other in said[tenant]), default=0)
        assert found <= max(own, WHOLE if prompt[:WHOLE] == LISTED[:WHOLE] else 0)
        request = engine.requests[max(engine.requests, key=lambda name: int(name[1:]))]
        said[tenant] += [list(sequence.token_ids) for sequence in request.sequences]


def shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
