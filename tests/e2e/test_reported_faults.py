"""Faults that users of other engines reported, each as a test of ours on the real engine.

A name says what is guarded; docs/design/prefix_cache.md lists the reports. Every test asserts what was hit, by count,
since an answer proves nothing about a cache that was never used.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.factories import tiny_model
from tests.oracles.recording import Answer, RecordedEngine, check_bits

from foreword.core.config import CacheConfig, KVDtype, PrefixCacheKind, SchedulerConfig
from foreword.core.outputs import TokenLogprobs
from foreword.kv_cache.block_hash import CacheIdentity
from foreword.kv_cache.explain import MissCause
from foreword.kv_cache.hash_prefix_cache import HashPrefixCache
from foreword.models.base import Model
from foreword.ops.cpu import CpuBackend
from foreword.ops.kv_layout import key_parts, value_parts

VOCAB = 64
SIZE = 16
Make = Callable[..., RecordedEngine]


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return CpuBackend(num_threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, backend: CpuBackend) -> Model:
    folder: Path = tmp_path_factory.mktemp("model")
    return tiny_model(folder, backend, weight_dtype="q4", vocab_size=VOCAB)


@pytest.fixture(params=["int16", "f16"])
def kv_dtype(request: pytest.FixtureRequest) -> KVDtype:
    found: KVDtype = request.param
    return found


@pytest.fixture
def make(model: Model, backend: CpuBackend, kv_dtype: KVDtype) -> Make:
    def build(kind: PrefixCacheKind = "radix", *, num_blocks: int = 64, **settings: int) -> RecordedEngine:
        cache = CacheConfig(num_blocks=num_blocks, kv_dtype=kv_dtype, prefix_cache=kind, debug=True)
        limits = {"max_num_seqs": 16, "max_model_len": 400, **settings}
        return RecordedEngine(model, backend, cache, SchedulerConfig(**limits))  # type: ignore[arg-type]

    return build


def text(seed: int, length: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return found


def logprobs(answer: Answer) -> list[float]:
    """Of the tokens drawn, in order."""
    found = []
    for step in answer.steps:
        for token in step.new_tokens:
            assert token.logprobs is not None
            found.append(token.logprobs[token.token_id].logprob)
    return found


@pytest.mark.parametrize(("kind", "hit"), [("radix", 5 * SIZE + 6), ("hash", 5 * SIZE)])
def test_the_first_greedy_answer_is_the_same_as_later_ones_to_the_last_bit(
    make: Make, kind: PrefixCacheKind, hit: int
) -> None:
    engine = make(kind)
    prompt = text(1, 5 * SIZE + 7)

    cold, warm = (engine.ask(prompt, max_tokens=64, logprobs=0) for _ in range(2))

    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, hit)
    assert cold.tokens == warm.tokens
    assert logprobs(cold) == logprobs(warm)


def test_prompt_logprobs_do_not_depend_on_the_order_of_requests(make: Make) -> None:
    prompts = [text(1, 40) + text(seed, 20) for seed in (2, 3, 4)]

    def score(engine: RecordedEngine, order: list[int]) -> dict[int, tuple[TokenLogprobs | None, ...] | None]:
        scores = {}
        for index in order:
            scores[index] = engine.ask(prompts[index], prompt_logprobs=3, max_tokens=1).steps[0].prompt_logprobs
            hit = engine.ask(prompts[index], max_tokens=1).usage.cached_tokens  # reads what scoring wrote
            assert hit == (59 if engine.cache.prefix_cache == "radix" else 0)
        return scores

    forwards = score(make(), [0, 1, 2])

    assert None not in forwards.values()
    assert forwards == score(make(), [2, 1, 0]) == score(make("none"), [0, 1, 2])


def test_a_hash_of_8_bits_costs_hits_and_never_an_answer(make: Make) -> None:
    engine, plain = make("hash", num_blocks=120), make("none", num_blocks=120)
    manager = engine.engine._manager
    index = HashPrefixCache(engine.cache, manager.pool, manager.stats, num_hash_bytes=1)
    manager.prefix_cache = index
    rng = np.random.default_rng(0)

    for _ in range(500):
        prompt = [*text(int(rng.integers(20)), 32), *text(int(rng.integers(1000)), int(rng.integers(1, 40)))]
        assert engine.ask(prompt).tokens == plain.ask(prompt).tokens

    assert index.num_collisions > 0
    assert engine.engine.stats().hit_tokens > 0


def test_stale_rows_behind_a_partial_match_are_never_read(make: Make, model: Model) -> None:
    engine = make()
    tokens = text(1, 30)
    engine.ask(tokens, max_tokens=1)
    match = engine.engine._manager.prefix_cache.match(engine.engine._manager._loose_path(b"", tokens), 21)  # type: ignore[arg-type]
    assert match.partial is not None
    for layer in range(model.config.num_layers):
        for parts in (key_parts(engine.storage.k_cache(layer)), value_parts(engine.storage.v_cache(layer))):
            if parts.scales is not None:
                parts.scales[match.partial, :, 21 % SIZE :] = np.nan
                continue
            for offset in range(21 % SIZE, SIZE):
                parts.write(match.partial, offset, np.nan)

    answer = engine.ask([*tokens[:21], (tokens[21] + 1) % VOCAB, 5, 6], max_tokens=8)

    assert answer.usage.cached_tokens == 21
    check_bits(engine.recorder, model, engine.cache.kv_dtype, chunk=128)


@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_equal_prompts_in_one_batch_on_an_empty_cache_read_nothing_unwritten(
    make: Make, model: Model, kind: PrefixCacheKind
) -> None:
    engine = make(kind)
    prompt = text(1, 57)

    answers = [engine.add(prompt, max_tokens=4) for _ in range(16)]
    engine.run()

    assert [answer.usage.cached_tokens for answer in answers] == [0] + [48] * 15
    assert len({tuple(answer.tokens[0]) for answer in answers}) == 1
    check_bits(engine.recorder, model, engine.cache.kv_dtype, chunk=128)


def test_equal_cold_prefixes_that_arrive_together_are_computed_once(make: Make) -> None:
    engine = make()

    answers = [engine.add(text(1, 10 * SIZE) + text(2 + i, 25)) for i in range(3)]
    engine.run()

    assert engine.engine.stats().prefilled_tokens == 10 * SIZE + 3 * 25
    assert [answer.usage.cached_tokens for answer in answers] == [0, 10 * SIZE, 10 * SIZE]


def test_a_prompt_cut_into_chunks_counts_none_of_its_own_as_cached(make: Make) -> None:
    engine = make(token_budget=16)

    cold, warm = (engine.ask(text(1, 40), max_tokens=1) for _ in range(2))

    assert (cold.usage.cached_tokens, cold.usage.computed_tokens) == (0, 40)
    assert (warm.usage.cached_tokens, warm.usage.computed_tokens) == (39, 1)


def test_a_miss_counts_0_and_the_account_adds_up_in_every_step(make: Make) -> None:
    engine = make()

    cold, warm = (engine.ask(text(1, 40), max_tokens=5) for _ in range(2))

    assert {step.usage.cached_tokens for step in cold.steps} == {0}
    assert {step.usage.cached_tokens for step in warm.steps} == {39}
    assert len(cold.steps) == len(warm.steps) == 5


def test_a_hit_does_not_depend_on_the_row_that_serves_it(make: Make) -> None:
    engine = make()
    prompt = text(1, 45)
    engine.ask(prompt)

    for row in range(6):
        batch = [engine.add(prompt if i == row else text(100 + 6 * row + i, 20)) for i in range(6)]
        engine.run()

        assert batch[row].usage.cached_tokens == 44


def test_shared_blocks_keep_their_bytes_while_they_can_be_found(make: Make, model: Model) -> None:
    engine = make(num_blocks=40)
    pool = engine.engine._manager.pool
    layers = range(model.config.num_layers)

    def digest(block: int) -> bytes:
        parts = [
            c(layer)[block].tobytes() for layer in layers for c in (engine.storage.k_cache, engine.storage.v_cache)
        ]
        return hashlib.sha256(b"".join(parts)).digest()

    prompt = text(1, 50)
    answers = [engine.ask(prompt, max_tokens=10)]
    engine.add(prompt, n=4, temperature=1.0, seed=1, max_tokens=30)
    answers += [engine.add(prompt, max_tokens=10) for _ in range(4)]
    for i in range(5):
        engine.add(prompt[: 20 + 5 * i] + text(2 + i, 20), max_tokens=20)
    compared = 0
    while engine.engine.has_unfinished:
        known = {block: digest(block) for block in pool.findable_blocks()}
        evicted = engine.engine.stats().evicted_blocks
        engine.step()
        if engine.engine.stats().evicted_blocks == evicted:
            still = [block for block in known if pool.is_findable(block)]
            assert all(digest(block) == known[block] for block in still)
            compared += len(still)
    engine.run()

    assert compared > 100
    assert [answer.usage.cached_tokens for answer in answers] == [0, 49, 49, 49, 49]
    assert len({tuple(answer.tokens[0]) for answer in answers}) == 1
    check_bits(engine.recorder, model, engine.cache.kv_dtype, chunk=128)


def test_a_history_without_its_reasoning_hits_to_the_end_of_the_last_user_text(make: Make) -> None:
    engine = make()
    shown = [7, 8, 9]
    first = text(1, 40)
    engine.ask(first, max_tokens=20)
    second = [*first, *shown, *text(2, 15)]
    answer = engine.ask(second, max_tokens=20)

    third = [*second, (answer.tokens[0][0] + 1) % VOCAB, *text(3, 15)]
    report = engine.engine.explain_cache(b"", third)  # type: ignore[arg-type]
    hit = engine.ask(third).usage.cached_tokens

    assert hit == report.matched_tokens == len(second)
    assert report.cause is MissCause.CHANGED
    assert (report.wanted_token, report.stored_token) == (third[len(second)], answer.tokens[0][0])


def test_twenty_pools_of_prompts_never_outgrow_the_pool(make: Make) -> None:
    engine = make(num_blocks=24)
    before = engine.storage.num_bytes
    kinds: list[dict[str, object]] = [{}, {"n": 3}, {"prompt_logprobs": 1}, {"max_tokens": 20}]

    for seed in range(100):
        engine.ask(text(seed, 80), **kinds[seed % 4])  # type: ignore[arg-type]
        stats = engine.engine.stats()
        assert stats.free_blocks + stats.held_blocks + stats.cached_blocks == 24

    assert engine.storage.num_bytes == before
    assert engine.ask(text(99, 80)).usage.cached_tokens == 79


def test_another_adapter_tenant_or_salt_never_hits(make: Make) -> None:
    def root(**changes: bytes) -> bytes:
        same = {"weights": b"w", "tokenizer": b"t", "attention": b"a"}
        return CacheIdentity(
            **{**same, **changes},
            kv_dtype="int16",
            block_size=16,
            instruction_set="avx2",
        ).root()

    roots = [root(), root(adapter=b"1"), root(adapter=b"2"), root(tenant=b"1"), root(salt=b"1"), root(weights=b"v")]
    for kind, hit in (("radix", 49), ("hash", 48)):
        engine = make(kind)
        prompt = text(1, 50)

        cold = [engine.ask(prompt, namespace=name) for name in roots]
        warm = [engine.ask(prompt, namespace=name) for name in roots]

        assert [answer.usage.cached_tokens for answer in cold] == [0] * 6
        assert [answer.usage.cached_tokens for answer in warm] == [hit] * 6
