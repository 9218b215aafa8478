"""Constrained sequences: every token allowed, an end where the constraint ends, and the same tokens in any company."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.factories import tiny_model
from tests.oracles.token_constraint import SumConstraint

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import ConstraintError, InvalidRequestError
from foreword.core.outputs import RequestFailure, SequenceStep
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import FinishReason
from foreword.core.structured_output import StructuredOutput
from foreword.engine.engine import Engine
from foreword.models.base import Model
from foreword.ops.backend import Backend
from foreword.ops.cpu import CpuBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

VOCAB = 64
EOS = 63
FORM = StructuredOutput(regex="stands for the constraint beside it")
MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module")
def backend() -> Backend:
    return CpuBackend(num_threads=1)


@pytest.fixture(scope="module")
def model(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"), backend, vocab_size=VOCAB, max_position=2048)


@pytest.fixture
def make_engine(model: Model, backend: Backend) -> Iterator[MakeEngine]:
    engines = []

    def make(*, num_blocks: int = 200, prefix_cache: Any = "radix", **scheduler: Any) -> Engine:
        cache = CacheConfig(num_blocks=num_blocks, prefix_cache=prefix_cache, debug=True)
        config = SchedulerConfig(**({"max_model_len": 2048} | scheduler))
        runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
        engines.append(Engine(runner, cache, config, draw_seed=itertools.count().__next__))
        return engines[-1]

    yield make
    for engine in engines:
        engine.abort_all()
        engine.check_invariants()
        assert engine.stats().held_blocks == 0
        assert not engine._constraints


def stepping(modulus: int, length: int = 1 << 30, **others: Any) -> SumConstraint:
    """Tokens whose number is the sum so far, modulo something: each token decides what may follow it."""
    return SumConstraint(lambda total: range(total % modulus, VOCAB - 1, modulus), length, **others)


def params(max_tokens: int = 40, **others: Any) -> SamplingParams:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": max_tokens, "structured_output": FORM}
    return SamplingParams(**(fields | others))


def prompt(length: int, start: int = 0) -> list[int]:
    return [(7 * i + start) % VOCAB for i in range(length)]


def run(engine: Engine) -> dict[tuple[str, int], list[SequenceStep]]:
    found: dict[tuple[str, int], list[SequenceStep]] = {}
    while engine.has_unfinished:
        result = engine.step()
        assert not result.failures
        for step in result.sequences:
            found.setdefault((step.request_id, step.index), []).append(step)
    return found


def tokens(steps: list[SequenceStep]) -> list[int]:
    return [token.token_id for step in steps for token in step.new_tokens]


def follows(constraint: SumConstraint, generated: list[int]) -> bool:
    state = constraint.start()
    for token in generated:
        if token not in state.allowed_ids:
            return False
        state.accept(token)  # type: ignore[arg-type]  # an id is an int
    return True


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_every_token_is_one_that_was_allowed(make_engine: MakeEngine, temperature: float) -> None:
    engine = make_engine()
    constraint = stepping(5)

    engine.add("a", prompt(20), params(temperature=temperature, seed=3), constraint=constraint)
    engine.add("b", prompt(20), params(temperature=temperature, seed=3, structured_output=None))
    found = run(engine)

    assert follows(constraint, tokens(found["a", 0]))
    assert not follows(constraint, tokens(found["b", 0]))
    assert found["a", 0][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("max_tokens", [7, 8])
def test_an_answer_ends_with_its_constraint_even_at_its_last_token(make_engine: MakeEngine, max_tokens: int) -> None:
    engine = make_engine()

    engine.add("a", prompt(20), params(max_tokens), [EOS], constraint=stepping(5, length=7))
    steps = run(engine)["a", 0]

    assert len(tokens(steps)) == 7
    assert steps[-1].finish_reason is FinishReason.STOP


def test_an_answer_cut_off_says_so(make_engine: MakeEngine) -> None:
    engine = make_engine()

    engine.add("a", prompt(20), params(6), [EOS], constraint=stepping(5, length=7))

    assert run(engine)["a", 0][-1].finish_reason is FinishReason.LENGTH


def test_the_end_token_comes_where_the_constraint_allows_it_and_not_before(make_engine: MakeEngine) -> None:
    engine = make_engine()
    bias = {EOS: 100.0}

    for ends_from in (0, 3):
        constraint = stepping(5, end_tokens=frozenset({EOS}), ends_from=ends_from)
        engine.add(f"{ends_from}", prompt(9), params(logit_bias=bias), [EOS], constraint=constraint)
    found = run(engine)

    for ends_from in (0, 3):
        steps = found[f"{ends_from}", 0]
        assert tokens(steps).index(EOS) == ends_from == len(tokens(steps)) - 1
        assert steps[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("others", [{"min_tokens": 9}, {"ignore_eos": True}])
def test_an_early_end_is_put_off_while_something_else_may_come(make_engine: MakeEngine, others: Any) -> None:
    engine = make_engine()
    constraint = stepping(5, length=12, end_tokens=frozenset({EOS}), ends_from=0)

    engine.add("a", prompt(9), params(logit_bias={EOS: 100.0}, **others), [EOS], constraint=constraint)
    steps = run(engine)["a", 0]

    assert tokens(steps).count(EOS) == (1 if "min_tokens" in others else 0)
    assert len(tokens(steps)) == (10 if "min_tokens" in others else 12)


@pytest.mark.parametrize("others", [{"min_tokens": 9}, {"ignore_eos": True}])
def test_where_only_the_end_may_come_it_comes(make_engine: MakeEngine, others: Any) -> None:
    engine = make_engine()
    constraint = SumConstraint(lambda total: [] if total else [5], 12, frozenset({EOS}), ends_from=1)

    engine.add("a", prompt(9), params(**others), [EOS], constraint=constraint)
    steps = run(engine)["a", 0]

    assert tokens(steps) == [5, EOS]
    assert steps[-1].finish_reason is FinishReason.STOP


def test_sequences_of_one_request_stand_in_places_of_their_own(make_engine: MakeEngine) -> None:
    engine = make_engine()
    constraint = stepping(3, length=12)

    engine.add("a", prompt(30), params(n=4, temperature=1.5, seed=1), constraint=constraint)
    found = run(engine)

    answers = [tokens(found["a", index]) for index in range(4)]
    assert len({tuple(answer) for answer in answers}) == 4
    assert all(follows(constraint, answer) and len(answer) == 12 for answer in answers)


def test_logprobs_are_the_models_own(make_engine: MakeEngine) -> None:
    engine = make_engine()

    engine.add("free", prompt(20), params(1, structured_output=None, logprobs=20))
    engine.add("held", prompt(20), params(1, logprobs=20), constraint=SumConstraint(lambda _: [7], 1))
    found = run(engine)

    (free,), (held,) = found["free", 0][0].new_tokens, found["held", 0][0].new_tokens
    assert free.logprobs is not None
    assert held.logprobs is not None
    best = list(free.logprobs.values())
    assert held.token_id == 7
    assert {t: p for t, p in held.logprobs.items() if t != 7} == {
        t: p for t, p in list(free.logprobs.items())[: len(best)] if t != 7
    }
    assert held.logprobs[TOKEN_7].logprob < 0


TOKEN_7 = 7


def test_a_constraint_that_can_not_go_on_ends_its_request_and_no_other(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add("a", prompt(20), params(9, n=2, temperature=1), constraint=stepping(5, fails_after=4))
    engine.add("b", prompt(20), params(9), constraint=stepping(5))
    failures, steps = list[RequestFailure](), list[SequenceStep]()

    while engine.has_unfinished:
        result = engine.step()
        failures += result.failures
        steps += [step for step in result.sequences if step.request_id == "b"]

    assert [failure.request_id for failure in failures] == ["a"]
    assert isinstance(failures[0].error, ConstraintError)
    assert len(tokens(steps)) == 9


def test_a_form_without_its_constraint_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()

    with pytest.raises(InvalidRequestError, match="constraint: expected structured_output, compiled"):
        engine.add("a", prompt(20), params())

    assert not engine.has_unfinished


def test_a_step_that_fails_leaves_constrained_sequences_where_they_were(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, alone = make_engine(), make_engine()
    alone.add("a", prompt(20), params(12), constraint=stepping(5))
    constraint = stepping(5)
    engine.add("a", prompt(20), params(12), constraint=constraint)
    steps = [step for _ in range(4) for step in engine.step().sequences]

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as broken:
        broken.setattr(engine._runner, "execute", fail)
        with pytest.raises(RuntimeError):
            engine.step()
    steps += run(engine)["a", 0]

    assert tokens(steps) == tokens(run(alone)["a", 0])
    assert constraint.starts == [0, 4]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_constrained_tokens_do_not_depend_on_company_pool_chunks_or_cache(
    make_engine: MakeEngine, data: st.DataObject
) -> None:
    """Law 5, with constraints: whatever is preempted goes on exactly where its tokens say."""
    asked = data.draw(
        st.lists(
            st.tuples(st.integers(1, 60), st.sampled_from([None, 2, 5, 11]), st.sampled_from([0, 1.2])),
            min_size=2,
            max_size=6,
        )
    )
    num_blocks = data.draw(st.integers(9, 24))
    shaken = make_engine(
        num_blocks=num_blocks,
        prefix_cache=data.draw(st.sampled_from(["none", "hash", "radix"])),
        token_budget=data.draw(st.sampled_from([16, 64, 512])),
        max_model_len=140,
        max_num_seqs=8,
    )
    calm = make_engine(prefix_cache="none", max_model_len=140)

    def add(engine: Engine, number: int) -> None:
        length, modulus, temperature = asked[number]
        constraint = None if modulus is None else stepping(modulus, length=50)
        form = None if modulus is None else FORM
        chosen = params(64, temperature=temperature, seed=number, structured_output=form)
        engine.add(f"{number}", prompt(length), chosen, [EOS], constraint=constraint)

    for number in range(len(asked)):
        add(shaken, number)
    together = run(shaken)

    for number in range(len(asked)):
        add(calm, number)
        (alone,) = run(calm).values()
        assert tokens(together[f"{number}", 0]) == tokens(alone)
        assert together[f"{number}", 0][-1].finish_reason is alone[-1].finish_reason


def test_a_preempted_sequence_holds_no_state_and_finds_its_place_again(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=10, max_model_len=150, prefix_cache="none")
    constraints = [stepping(5, length=90) for _ in range(2)]

    for number, constraint in enumerate(constraints):
        engine.add(f"{number}", prompt(10 + number), params(128), constraint=constraint)
    found = run(engine)

    assert engine.stats().num_preemptions > 0
    assert max(start for constraint in constraints for start in constraint.starts) > 0
    assert all(follows(stepping(5, length=90), tokens(found[f"{n}", 0])) for n in range(2))
