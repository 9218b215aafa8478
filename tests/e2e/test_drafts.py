"""Speculation changes when tokens come and never which: the whole engine with drafts beside the same without.

Prompts are few tokens long in vocabulary, so that much is said again; other drafts are told ahead, with every fifth
wrong. Tokens, logprobs, ends and accounts must be those of plain decoding, each row of logits, drafts' included, that
of its tokens run alone.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.factories import tiny_model
from tests.oracles.guesses import EagerGuesses
from tests.oracles.recording import Answer, RecordedEngine, check_bits

from foreword.core.config import CacheConfig, KVDtype, PrefixCacheKind, SchedulerConfig
from foreword.models.base import Model
from foreword.ops.cpu import CpuBackend

VOCAB = 64


class World:
    """One tiny model, and engines over it."""

    def __init__(self, folder: Path, kv_dtype: KVDtype) -> None:
        self.kv_dtype = kv_dtype
        self.backend = CpuBackend(num_threads=1)
        self.model: Model = tiny_model(folder, self.backend, vocab_size=VOCAB, max_position=2048)

    def engine(
        self, *, num_blocks: int = 80, prefix_cache: PrefixCacheKind = "radix", **scheduler: Any
    ) -> RecordedEngine:
        cache = CacheConfig(num_blocks=num_blocks, kv_dtype=self.kv_dtype, prefix_cache=prefix_cache, debug=True)
        config = SchedulerConfig(**({"max_model_len": 300} | scheduler))
        return RecordedEngine(self.model, self.backend, cache, config)


@pytest.fixture(scope="module", params=["int16", "f16"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("model"), request.param)


def eager(engine: RecordedEngine, truth: dict[tuple[int, int], list[int]] | None = None) -> RecordedEngine:
    engine.engine._scheduler._drafting._speculation = EagerGuesses(VOCAB, truth)
    return engine


def told(answer: Answer) -> list[Any]:
    """All a client could see of an answer, token by token."""
    tokens = [(s.index, t.token_id, t.logprobs) for s in answer.steps for t in s.new_tokens]
    ends = [(s.index, s.finish_reason, s.stop_token_id) for s in answer.steps if s.finish_reason is not None]
    return [*sorted(tokens, key=lambda entry: entry[0]), *sorted(ends, key=lambda entry: entry[0]), answer.usage]


@st.composite
def sampling(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of one request, histories and bounds among them."""
    params: dict[str, Any] = {
        "max_tokens": draw(st.integers(1, 40)),
        "seed": draw(st.integers(0, 50)),
        "temperature": draw(st.sampled_from([0, 0, 0.3, 1.0])),
        "n": draw(st.sampled_from([1, 1, 2])),
    }
    extras = {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "top_k": 5,
        "top_p": 0.8,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "logit_bias": {3: 2.0, 5: -3.0},
        "stop_token_ids": [7, 11],
        "min_tokens": min(params["max_tokens"], 9),
    }
    return params | {name: extras[name] for name in draw(st.sets(st.sampled_from(sorted(extras)), max_size=3))}


@given(
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=50), min_size=1, max_size=4),
    params=st.lists(sampling(), min_size=4, max_size=4),
    spare=st.sampled_from([0, 1, 4, 60]),
    budget=st.sampled_from([2, 9, 40, 512]),
    prefix_cache=st.sampled_from(["radix", "hash", "none"]),
    kind=st.sampled_from(["told", "any", "prompt_lookup"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_answers_are_those_of_plain_decoding_whatever_is_drafted(
    world: World,
    prompts: list[list[int]],
    params: list[dict[str, Any]],
    spare: int,
    budget: int,
    prefix_cache: PrefixCacheKind,
    kind: str,
) -> None:
    longest = max(len(p) + s["max_tokens"] for p, s in zip(prompts, params, strict=False))
    shape: dict[str, Any] = {
        "num_blocks": -(-longest // 16) + 1 + spare,
        "prefix_cache": prefix_cache,
        "token_budget": budget,
    }
    plain = world.engine(**shape)
    expected = [plain.add(p, **s) for p, s in zip(prompts, params, strict=False)]
    plain.run()
    truth = {(len(p), s["seed"]): a.tokens[0] for p, s, a in zip(prompts, params, expected, strict=False)}
    drafting = world.engine(**shape, speculation="prompt_lookup")
    if kind != "prompt_lookup":
        eager(drafting, truth if kind == "told" else None)

    got = [drafting.add(p, **s) for p, s in zip(prompts, params, strict=False)]
    drafting.run()

    for mine, theirs in zip(got, expected, strict=True):
        mine.usage.cached_tokens = theirs.usage.cached_tokens  # what is found, and what is preempted, may differ
        mine.usage.computed_tokens = theirs.usage.computed_tokens
        mine.usage.written_tokens = theirs.usage.written_tokens
        mine.usage.recomputed_tokens = theirs.usage.recomputed_tokens
        assert told(mine) == told(theirs)
    check_bits(drafting.recorder, world.model, world.kv_dtype)
    stats = drafting.engine.stats()
    kinds = stats.prefilled_tokens + stats.decoded_tokens + stats.recomputed_tokens
    assert stats.computed_tokens == kinds + stats.drafted_tokens - stats.accepted_tokens
    assert stats.sampled_tokens == plain.engine.stats().sampled_tokens


def test_a_greedy_answer_that_repeats_itself_takes_fewer_steps(world: World) -> None:
    plain, drafting = world.engine(), world.engine(speculation="prompt_lookup")

    answers = [engine.ask([1, 2], max_tokens=200, logit_bias={3: 9.0, 4: 9.0}) for engine in (plain, drafting)]

    assert answers[0].tokens == answers[1].tokens
    stats = drafting.engine.stats()
    assert stats.num_steps < 0.7 * plain.engine.stats().num_steps
    assert stats.accepted_tokens > 0.5 * stats.drafted_tokens > 0
    check_bits(drafting.recorder, world.model, world.kv_dtype)


def test_later_prompts_find_what_was_accepted_and_nothing_else(world: World) -> None:
    plain, drafting = world.engine(), eager(world.engine())
    prompt = [(5 * i) % VOCAB for i in range(21)]
    answers = [engine.ask(prompt, max_tokens=40, temperature=1.0, seed=4) for engine in (plain, drafting)]
    assert answers[0].tokens == answers[1].tokens
    said = [*prompt, *answers[0].tokens[0]]

    for length in range(1, len(said) + 1):
        for last in (0, 1):
            asked = [*said[:length], last]
            assert drafting.would_hit(asked) == plain.would_hit(asked) == min(length, len(said) - 1)


def test_an_abort_in_the_middle_of_drafting_leaves_nothing_held(world: World) -> None:
    for when in range(2, 9):
        engine = eager(world.engine())
        engine.add([1, 2, 3] * 9, max_tokens=60)
        for _ in range(when):
            engine.step()
        engine.engine.abort("0")
        engine.run()
        engine.engine.reset_cache()
        assert engine.engine.stats().free_blocks == 80
        expected = world.engine().ask([1, 2, 3] * 9, max_tokens=20).tokens
        assert engine.ask([1, 2, 3] * 9, max_tokens=20).tokens == expected
