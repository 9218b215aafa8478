"""The engine's promises on a tiny model: counts, ends, logprobs, forks, aborts, and no trace left behind."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.factories import tiny_model
from tests.oracles.sequential_generate import sequential_generate, sequential_logits

from foreword.core.config import CacheConfig, KVDtype, SchedulerConfig
from foreword.core.errors import CapacityError, InvalidRequestError
from foreword.core.outputs import SequenceStep
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import FinishReason
from foreword.engine.engine import Engine
from foreword.models.base import Model
from foreword.ops.backend import Backend
from foreword.ops.cpu import CpuBackend
from foreword.ops.kv_layout import key_parts
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

VOCAB = 64
KV_DTYPE: KVDtype = "int16"
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def backend() -> Backend:
    return CpuBackend(num_threads=1)


@pytest.fixture(scope="module")
def model(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"), backend, vocab_size=VOCAB, max_position=2048)


@pytest.fixture
def make_engine(model: Model, backend: Backend) -> Iterator[Callable[..., Engine]]:
    engines = []

    def make(*, num_blocks: int = 200, prefix_cache: Any = "none", **scheduler: Any) -> Engine:
        cache = CacheConfig(num_blocks=num_blocks, kv_dtype=KV_DTYPE, prefix_cache=prefix_cache, debug=True)
        config = SchedulerConfig(**({"max_model_len": 2048} | scheduler))
        runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
        engines.append(Engine(runner, cache, config, draw_seed=itertools.count().__next__))
        return engines[-1]

    yield make
    for engine in engines:
        engine.abort_all()
        engine.check_invariants()
        assert engine.stats().held_blocks == 0


def run(engine: Engine) -> dict[tuple[str, int], list[SequenceStep]]:
    """Step to the end; the records of each sequence."""
    found: dict[tuple[str, int], list[SequenceStep]] = {}
    while engine.has_unfinished:
        for step in engine.step().sequences:
            found.setdefault((step.request_id, step.index), []).append(step)
    return found


def tokens(steps: list[SequenceStep]) -> list[int]:
    return [token.token_id for step in steps for token in step.new_tokens]


def prompt(length: int, start: int = 0) -> list[int]:
    return [(7 * i + start) % VOCAB for i in range(length)]


def test_greedy_tokens_equal_the_naive_oracle(make_engine: Callable[..., Engine], model: Model) -> None:
    engine = make_engine(token_budget=13)

    engine.add("a", prompt(37), SamplingParams(max_tokens=20, **GREEDY))

    assert tokens(run(engine)["a", 0]) == sequential_generate(model, prompt(37), 20, kv_dtype=KV_DTYPE).token_ids


def test_naive_loop_costs_104950_token_computations_and_the_cached_way_1099(make_engine: Callable[..., Engine]) -> None:
    cached, naive = make_engine(), make_engine(recompute_all=True)
    answers = []

    for engine in (cached, naive):
        engine.add("a", prompt(1000), SamplingParams(max_tokens=100, **GREEDY))
        answers.append(tokens(run(engine)["a", 0]))

    assert answers[0] == answers[1]
    assert cached.stats().computed_tokens == 1099
    assert naive.stats().computed_tokens == 104_950


def test_a_request_ends_for_its_stated_reason(make_engine: Callable[..., Engine], model: Model) -> None:
    expected = sequential_generate(model, prompt(9), 12, kv_dtype=KV_DTYPE).token_ids
    ending = next(t for i, t in enumerate(expected) if i >= 3 and t not in expected[:i])
    place = expected.index(ending)
    engine = make_engine()

    engine.add("length", prompt(9), SamplingParams(max_tokens=12, **GREEDY))
    engine.add("eos", prompt(9), SamplingParams(max_tokens=12, temperature=0), [ending])
    engine.add("ignored", prompt(9), SamplingParams(max_tokens=12, **GREEDY), [ending])
    engine.add("stop", prompt(9), SamplingParams(max_tokens=12, stop_token_ids=[ending], **GREEDY))
    steps = run(engine)

    last = {name: steps[name, 0][-1] for name in ("length", "eos", "ignored", "stop")}
    assert {name: step.finish_reason for name, step in last.items()} == {
        "length": FinishReason.LENGTH,
        "eos": FinishReason.STOP,
        "ignored": FinishReason.LENGTH,
        "stop": FinishReason.STOP,
    }
    assert last["stop"].stop_token_id == ending
    assert tokens(steps["eos", 0]) == tokens(steps["stop", 0]) == expected[: place + 1]
    assert tokens(steps["ignored", 0]) == expected


def test_no_end_token_comes_before_min_tokens(make_engine: Callable[..., Engine], model: Model) -> None:
    first = sequential_generate(model, prompt(9), 1, kv_dtype=KV_DTYPE).token_ids[0]
    engine = make_engine()

    engine.add("a", prompt(9), SamplingParams(max_tokens=12, min_tokens=6, temperature=0), [first])

    answer = tokens(run(engine)["a", 0])
    assert first not in answer[:6]


def test_the_context_is_never_outgrown(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(max_model_len=24)

    engine.add("a", prompt(20), SamplingParams(max_tokens=100, **GREEDY))

    steps = run(engine)["a", 0]
    assert len(tokens(steps)) == 4
    assert steps[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("ids", "params", "message"),
    [
        ([], {}, "prompt"),
        ([1, 64], {}, "prompt"),
        ([-1], {}, "prompt"),
        (prompt(2048), {}, "prompt"),
        ([1], {"logit_bias": {64: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": [99]}, "stop_token_ids"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_changes_nothing(
    make_engine: Callable[..., Engine], ids: list[int], params: dict[str, Any], message: str
) -> None:
    engine = make_engine()
    before = engine.stats()

    for call in (engine.check, lambda i, p: engine.add("a", i, p)):
        with pytest.raises(InvalidRequestError, match=f"^{message}"):
            call(ids, SamplingParams(**params))

    assert engine.stats() == before
    assert not engine.has_unfinished


def test_what_can_never_fit_is_refused_at_the_door(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(num_blocks=4)

    with pytest.raises(CapacityError):
        engine.add("a", prompt(60), SamplingParams(max_tokens=60))

    assert not engine.has_unfinished


def test_samples_of_one_request_share_its_prompt_and_differ(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()

    engine.add("a", prompt(100), SamplingParams(n=4, max_tokens=8, temperature=2.0, seed=5, ignore_eos=True))
    answers = [tuple(tokens(steps)) for _, steps in sorted(run(engine).items())]

    assert len(answers) == 4
    assert len(set(answers)) == 4
    assert engine.stats().prefilled_tokens == 100 + 3  # each fork computes the last prompt token for its own logits


def test_a_seed_gives_the_same_answer_in_any_company(make_engine: Callable[..., Engine]) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.5, seed=42, ignore_eos=True)
    alone = make_engine()
    alone.add("a", prompt(21), params)
    expected = tokens(run(alone)["a", 0])
    crowd = make_engine(num_blocks=12, token_budget=7, max_num_seqs=3)

    for i in range(5):
        crowd.add(str(i), prompt(30, start=i), SamplingParams(max_tokens=9, temperature=1.0, ignore_eos=True))
    crowd.add("a", prompt(21), params)

    assert tokens(run(crowd)["a", 0]) == expected


def test_prompt_logprobs_are_those_of_the_whole_prompt_however_it_is_cut(
    make_engine: Callable[..., Engine], model: Model
) -> None:
    ids = prompt(45)
    rows = sequential_logits(model, ids, kv_dtype=KV_DTYPE).astype(np.float64)
    expected = rows - rows.max(axis=1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(axis=1, keepdims=True))
    seen = []

    for budget in (512, 16, 7):
        for prefix_cache in ("none", "radix"):
            engine = make_engine(token_budget=budget, prefix_cache=prefix_cache)
            for name in ("cold", "warm"):
                engine.add(name, ids, SamplingParams(max_tokens=1, prompt_logprobs=2, **GREEDY))
                found = run(engine)[name, 0][0].prompt_logprobs
                assert found is not None
                seen.append(found)

    for found in seen:
        assert found == seen[0]
    assert seen[0][0] is None
    for position in range(1, len(ids)):
        at = seen[0][position]
        assert at is not None
        assert at[ids[position]].logprob == pytest.approx(expected[position - 1, ids[position]], abs=1e-4)
        assert len(at) >= 2


@pytest.mark.parametrize("steps_before", range(6))
def test_abort_at_any_point_gives_all_blocks_back(make_engine: Callable[..., Engine], steps_before: int) -> None:
    engine = make_engine(token_budget=16)
    engine.add("kept", prompt(20), SamplingParams(max_tokens=5, **GREEDY))
    engine.add("gone", prompt(50, start=3), SamplingParams(n=2, max_tokens=30, **GREEDY))

    for _ in range(steps_before):
        engine.step()
    engine.abort("gone")
    engine.abort("gone")
    engine.abort("never was")

    assert len(tokens(run(engine).get(("kept", 0), []))) <= 5
    assert engine.stats().held_blocks == 0


def test_a_failed_step_loses_nothing(make_engine: Callable[..., Engine], model: Model, monkeypatch: Any) -> None:
    engine = make_engine(token_budget=16)
    expected = sequential_generate(model, prompt(40), 10, kv_dtype=KV_DTYPE).token_ids
    engine.add("a", prompt(40), SamplingParams(max_tokens=10, **GREEDY))
    calls = itertools.count()
    real = type(model).forward

    def failing(*arguments: Any, **options: Any) -> Any:
        if next(calls) in (1, 5):
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(type(model), "forward", failing)
    found: list[int] = []
    interruptions = 0
    while engine.has_unfinished:
        try:
            for step in engine.step().sequences:
                found += [token.token_id for token in step.new_tokens]
        except KeyboardInterrupt:
            interruptions += 1

    assert interruptions == 2
    assert found == expected


def test_debug_mode_poisons_what_is_freed(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(num_blocks=8)
    engine.add("a", prompt(40), SamplingParams(max_tokens=2, **GREEDY))

    run(engine)

    keys = key_parts(engine._runner.kv.k_cache(0)).floats()
    poisoned = {int(block) for block in np.flatnonzero(np.isnan(keys).all(axis=(1, 2, 3)))}
    assert engine.stats().free_blocks == 8
    assert len(poisoned) == 3  # 41 tokens; the other blocks were never written


def test_usage_adds_up_under_pressure(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(num_blocks=14, token_budget=32, max_num_seqs=4)
    for i in range(6):
        engine.add(str(i), prompt(50, start=i), SamplingParams(max_tokens=40, **GREEDY))

    ends = [steps[-1] for steps in run(engine).values()]

    assert len(ends) == 6
    assert engine.stats().num_preemptions > 0
    for end in ends:
        assert end.usage.cached_tokens + end.usage.computed_tokens == end.usage.prompt_tokens == 50
        assert end.usage.completion_tokens == 40
    stats = engine.stats()
    assert stats.computed_tokens == stats.prefilled_tokens + stats.decoded_tokens + stats.recomputed_tokens


def test_an_idle_engine_holds_no_block_that_was_copied_from(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(prefix_cache="radix")

    for ending in (1, 2):  # the second hit ends inside a block, which is copied in its only step
        engine.add(str(ending), [*prompt(20), ending], SamplingParams(max_tokens=1, **GREEDY))
        run(engine)

    assert engine.stats().copied_blocks == 1
    assert engine.stats().held_blocks == 0
