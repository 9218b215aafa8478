"""Beam search equals the naive one, whatever runs beside it, however small the pool; forks share and leak nothing."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_model
from tests.oracles.beam_search import beam_search

from foreword.core.config import CacheConfig, KVDtype, PrefixCacheKind, SchedulerConfig
from foreword.core.errors import InvalidRequestError
from foreword.core.sampling_params import BeamSearchParams, SamplingParams
from foreword.core.sequence import FinishReason
from foreword.engine.beam_search import BeamGroup
from foreword.engine.engine import Engine
from foreword.models.base import Model
from foreword.ops.backend import Backend
from foreword.ops.cpu import CpuBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

VOCAB = 64
MAX_MODEL_LEN = 160
KV_DTYPE: KVDtype = "int16"
BLOCK = 8


@pytest.fixture(scope="module")
def backend() -> Backend:
    return CpuBackend(num_threads=1)


@pytest.fixture(scope="module")
def model(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"), backend, vocab_size=VOCAB)


class World:
    """A real engine in debug mode, whose pool starts as NaN."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        *,
        num_blocks: int = 100,
        prefix_cache: PrefixCacheKind = "none",
        kv_dtype: KVDtype = KV_DTYPE,
        **scheduler: object,
    ) -> None:
        cache = CacheConfig(
            num_blocks=num_blocks, block_size=BLOCK, kv_dtype=kv_dtype, prefix_cache=prefix_cache, debug=True
        )
        config = SchedulerConfig(**{"max_model_len": MAX_MODEL_LEN, **scheduler})  # type: ignore[arg-type]
        storage = KVStorage(model.config, cache)
        storage.poison(range(num_blocks))  # type: ignore[arg-type]
        self.engine = Engine(ModelRunner(model, backend, storage, BLOCK, config.token_budget), cache, config)

    def step(self) -> None:
        self.engine.step()
        self.engine.check_invariants()
        stats = self.engine.stats()
        assert stats.free_blocks + stats.cached_blocks + stats.held_blocks == stats.num_blocks

    def run(self, max_steps: int = 20_000) -> None:
        for _ in range(max_steps):
            if not self.engine.has_unfinished:
                return
            self.step()
        raise AssertionError("not finished")

    def assert_empty(self) -> None:
        stats = self.engine.stats()
        assert stats.num_running == stats.num_waiting == stats.held_blocks == 0
        self.engine.reset_cache()
        assert self.engine.stats().free_blocks == stats.num_blocks


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length)]


def answer(group: BeamGroup) -> list[tuple[tuple[int, ...], float, float]]:
    assert group.is_finished
    return [(beam.token_ids, beam.cumulative_logprob, beam.score) for beam in group.beams]


@dataclass(frozen=True)
class Search:
    prompt: list[int]
    params: BeamSearchParams
    eos: frozenset[int]


@st.composite
def searches(draw: st.DrawFn) -> Search:
    opening = prompt_of(draw(st.sampled_from([0, 5, 8, 20])), seed=1)
    own = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))
    params = BeamSearchParams(
        beam_width=draw(st.integers(1, 5)),
        max_tokens=draw(st.integers(1, 12)),
        length_penalty=draw(st.sampled_from([1.0, 0.0, -1.0, 0.5, 2.0])),
        ignore_eos=draw(st.sampled_from([False, False, True])),
        early_stopping=draw(st.sampled_from([False, False, True])),
    )
    return Search(opening + own, params, frozenset(draw(st.lists(st.integers(0, VOCAB - 1), max_size=16))))


@given(
    found=st.lists(searches(), min_size=1, max_size=3),
    spare_blocks=st.sampled_from([0, 1, 2, 4, 8, 60]),
    token_budget=st.sampled_from([1, 3, 8, 17, 64]),
    max_num_seqs=st.sampled_from([1, 2, 3, 8, 32]),
    prefix_cache=st.sampled_from(["none", "hash", "radix"]),
    kv_dtype=st.sampled_from(["int16", "f16", "f32", "int8"]),
    recompute_all=st.sampled_from([False] * 5 + [True]),
    bystander=st.booleans(),
)
def test_beams_equal_those_of_a_search_that_computes_everything_anew(
    model: Model,
    backend: Backend,
    found: list[Search],
    spare_blocks: int,
    token_budget: int,
    max_num_seqs: int,
    prefix_cache: PrefixCacheKind,
    kv_dtype: KVDtype,
    recompute_all: bool,
    bystander: bool,
) -> None:
    least = max(-(-(len(s.prompt) + s.params.max_tokens - 1) // BLOCK) for s in found)
    world = World(
        model,
        backend,
        num_blocks=max(least, 4) + spare_blocks,
        prefix_cache=prefix_cache,
        kv_dtype=kv_dtype,
        token_budget=token_budget,
        max_num_seqs=max_num_seqs,
        recompute_all=recompute_all,
    )

    groups = [world.engine.add_beam_search(str(i), s.prompt, s.params, s.eos) for i, s in enumerate(found)]
    if bystander:
        world.engine.add("other", prompt_of(9, seed=3), SamplingParams(max_tokens=20, n=2, seed=0))
    world.run()

    for search, group in zip(found, groups, strict=True):
        wanted = beam_search(
            model,
            backend,
            search.prompt,
            search.params,
            search.eos,
            max_model_len=MAX_MODEL_LEN,
            kv_dtype=kv_dtype,
        )
        assert answer(group) == [(b.token_ids, b.cumulative_logprob, b.score) for b in wanted]
        usage = group.usage
        assert usage.prompt_tokens == len(search.prompt) == usage.cached_tokens + usage.computed_tokens
        assert usage.written_tokens <= usage.prompt_tokens - usage.cached_tokens
    world.assert_empty()


@pytest.mark.parametrize("length", [40, 43])
def test_beams_hold_the_whole_blocks_of_their_prompt_once(model: Model, backend: Backend, length: int) -> None:
    world = World(model, backend)
    width, new = 4, 10
    world.engine.add_beam_search("0", prompt_of(length), BeamSearchParams(beam_width=width, max_tokens=new))

    most = 0
    while world.engine.has_unfinished:
        world.step()
        most = max(most, world.engine.stats().held_blocks)

    shared = length // BLOCK
    own = -(-(length + new - 1) // BLOCK) - shared
    assert shared + own < most <= shared + width * (own + 1)  # one more each: what a copy was taken from
    assert world.engine.stats().computed_tokens <= length + width * (new - 1)
    assert world.engine.stats().prefilled_tokens == length
    world.assert_empty()


@pytest.mark.parametrize("prefix_cache", ["none", "hash", "radix"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_a_search_given_up_at_any_point_leaves_nothing(
    model: Model, backend: Backend, prefix_cache: PrefixCacheKind, steps: int
) -> None:
    world = World(model, backend, prefix_cache=prefix_cache, token_budget=30)
    world.engine.add_beam_search("0", prompt_of(43), BeamSearchParams(beam_width=3, max_tokens=20, ignore_eos=True))
    for _ in range(steps):
        world.step()

    world.engine.abort("0")

    assert not world.engine.has_unfinished
    world.assert_empty()


def test_beams_that_can_never_all_run_at_once_take_turns(model: Model, backend: Backend) -> None:
    prompt, params = prompt_of(20), BeamSearchParams(beam_width=6, max_tokens=12, ignore_eos=True)
    roomy, narrow = World(model, backend), World(model, backend, num_blocks=5)
    groups = [world.engine.add_beam_search("0", prompt, params) for world in (roomy, narrow)]

    roomy.run()
    narrow.run()

    assert answer(groups[0]) == answer(groups[1])
    assert groups[0].usage.recomputed_tokens == 0 < groups[1].usage.recomputed_tokens
    assert narrow.engine.stats().num_preemptions > 0
    narrow.assert_empty()


def test_a_failed_step_changes_no_beam(model: Model, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, params = prompt_of(20), BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True)
    calm, shaken = World(model, backend), World(model, backend)
    groups = [world.engine.add_beam_search("0", prompt, params) for world in (calm, shaken)]

    calm.run()
    for _ in range(4):
        shaken.step()
    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "execute", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shaken.engine.step()
    shaken.run()

    assert answer(groups[0]) == answer(groups[1])
    shaken.assert_empty()


def test_a_second_search_reads_all_but_the_last_prompt_token_from_the_cache(model: Model, backend: Backend) -> None:
    world = World(model, backend, prefix_cache="radix")
    prompt, params = prompt_of(37), BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True)
    first = world.engine.add_beam_search("0", prompt, params)
    world.run()

    second = world.engine.add_beam_search("1", prompt, params)
    world.run()

    assert answer(first) == answer(second)
    assert (first.usage.cached_tokens, first.usage.computed_tokens, first.usage.written_tokens) == (0, 37, 37)
    assert (second.usage.cached_tokens, second.usage.computed_tokens, second.usage.written_tokens) == (36, 1, 0)


def test_a_width_of_one_is_greedy(model: Model, backend: Backend) -> None:
    world = World(model, backend)
    group = world.engine.add_beam_search("0", prompt_of(9), BeamSearchParams(beam_width=1, max_tokens=10))
    world.engine.add("1", prompt_of(9), SamplingParams(temperature=0, max_tokens=10))

    greedy: list[int] = []
    while world.engine.has_unfinished:
        greedy += [t.token_id for s in world.engine.step().sequences for t in s.new_tokens]

    assert [list(beam.token_ids) for beam in group.beams] == [greedy]


def test_a_search_ends_early_only_when_nothing_can_change(model: Model, backend: Backend) -> None:
    steps = {}
    prompt, eos = prompt_of(9), range(0, VOCAB, 2)
    for penalty in (-1.0, 0.0, 4.0):
        world = World(model, backend)
        params = BeamSearchParams(beam_width=2, max_tokens=30, length_penalty=penalty)
        group = world.engine.add_beam_search("0", prompt, params, eos)
        world.run()
        wanted = beam_search(model, backend, prompt, params, list(eos), max_model_len=MAX_MODEL_LEN, kv_dtype=KV_DTYPE)
        assert answer(group) == [(b.token_ids, b.cumulative_logprob, b.score) for b in wanted]
        steps[penalty] = group.num_generated_tokens

    assert steps[-1.0] <= steps[0.0] < steps[4.0] == 30


def test_a_beam_stops_where_the_context_ends(model: Model, backend: Backend) -> None:
    world = World(model, backend)
    group = world.engine.add_beam_search("0", prompt_of(150), BeamSearchParams(beam_width=2, max_tokens=100))

    world.run()

    assert [(len(b.token_ids), b.finish_reason) for b in group.beams] == [(10, FinishReason.LENGTH)] * 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beam_width", 0),
        ("beam_width", 11),
        ("beam_width", True),
        ("max_tokens", 0),
        ("length_penalty", float("nan")),
        ("length_penalty", 11.0),
        ("ignore_eos", 1),
        ("early_stopping", "never"),
        ("temperature", 0.7),
        ("temperature", False),
    ],
)
def test_settings_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        BeamSearchParams(**{field: value})  # type: ignore[arg-type]
