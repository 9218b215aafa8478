"""Law 5: logits depend on the tokens before them and on nothing else, bit for bit.

Random workloads run through the whole engine: several requests at once, prompts around block borders, any chunk size,
small pools that force preemption, forks, aborts, one or two threads. Each row of logits the sampler sees is compared,
by its bytes, with a run of that one token sequence alone, computed in one piece over a private cache.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.factories import tiny_model
from tests.oracles.guesses import EagerGuesses
from tests.oracles.recording import RecordingSampler, check_bits
from tests.profile import DEEP

from foreword.core.config import CacheConfig, KVDtype, PrefixCacheKind, SchedulerConfig
from foreword.core.sampling_params import SamplingParams
from foreword.engine.engine import Engine
from foreword.models.base import Model
from foreword.models.registry import WeightDtype
from foreword.ops.backend import Backend
from foreword.ops.cpu import CpuBackend, available_instruction_sets
from foreword.ops.reference import ReferenceBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

VOCAB = 64
WEIGHTS: tuple[WeightDtype, ...] = ("q4", "q8", "f32")


@dataclass(frozen=True)
class Workload:
    """Requests and the circumstances under which they run."""

    prompts: list[list[int]]
    new_tokens: list[int]
    samples: list[int]
    aborted_at: list[int | None]
    arrivals: list[int]
    token_budget: int
    max_num_seqs: int
    num_blocks: int
    kv_dtype: KVDtype
    weights: WeightDtype
    threads: int
    prefix_cache: PrefixCacheKind
    drafts: bool = False  # as many as there is room for, right ones and wrong ones


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    border = st.builds(lambda k, d: max(1, 16 * k + d), st.integers(0, 4), st.integers(-1, 1))
    lengths = draw(st.lists(st.one_of(border, st.integers(1, 80)), min_size=1, max_size=5))
    shared = draw(st.integers(0, 70))
    opening = [(7 * i + 3) % VOCAB for i in range(shared)]
    prompts = []
    for length in lengths:
        own = draw(st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length))
        prompts.append((opening if draw(st.booleans()) else []) + own)
    count = len(prompts)
    new_tokens = [draw(st.integers(1, 20)) for _ in prompts]
    longest = max(len(p) + n for p, n in zip(prompts, new_tokens, strict=True))
    return Workload(
        prompts=prompts,
        new_tokens=new_tokens,
        samples=[draw(st.sampled_from([1, 1, 1, 2, 4])) for _ in prompts],
        aborted_at=[draw(st.one_of(st.none(), st.none(), st.integers(0, 12))) for _ in prompts],
        arrivals=sorted(draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))),
        token_budget=draw(st.sampled_from([1, 2, 5, 13, 16, 17, 64, 200, 512])),
        max_num_seqs=draw(st.integers(1, 8)),
        num_blocks=-(-longest // 16) + draw(st.sampled_from([0, 1, 3, 10, 60])) + 1,
        kv_dtype=draw(st.sampled_from(["int16", "f16", "f32", "int8"])),
        weights=draw(st.sampled_from(WEIGHTS)),
        threads=draw(st.sampled_from([1, 2])),
        prefix_cache=draw(st.sampled_from(["radix", "hash", "none"])),
        drafts=draw(st.booleans()),
    )


class Models:
    """Built once a session: packing is not what is tested here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[tuple[str, int], tuple[Model, Backend]] = {}

    def get(self, weights: WeightDtype, threads: int) -> tuple[Model, Backend]:
        if (weights, threads) not in self._built:
            backend = CpuBackend(num_threads=threads)
            model = tiny_model(self._folder, backend, weight_dtype=weights, vocab_size=VOCAB)
            self._built[weights, threads] = model, backend
        return self._built[weights, threads]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def run(workload: Workload, model: Model, backend: Backend) -> RecordingSampler:
    """Run a workload to its end; returns the recorder."""
    cache = CacheConfig(
        num_blocks=workload.num_blocks,
        kv_dtype=workload.kv_dtype,
        prefix_cache=workload.prefix_cache,
        debug=True,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=workload.max_num_seqs, token_budget=workload.token_budget, max_model_len=400
    )
    recorder = RecordingSampler(backend)
    storage = KVStorage(model.config, cache)
    storage.poison(range(cache.num_blocks))  # type: ignore[arg-type]
    runner = ModelRunner(model, backend, storage, cache.block_size, scheduler.token_budget, sampler=recorder)
    engine = Engine(runner, cache, scheduler)
    if workload.drafts:
        engine._scheduler._drafting._speculation = EagerGuesses(VOCAB)
    waiting = list(range(len(workload.prompts)))
    step = 0
    while waiting or engine.has_unfinished:
        while waiting and workload.arrivals[waiting[0]] <= step:
            i = waiting.pop(0)
            params = SamplingParams(
                temperature=1.0, seed=i, n=workload.samples[i], max_tokens=workload.new_tokens[i], ignore_eos=True
            )
            engine.add(str(i), workload.prompts[i], params)
        for i, when in enumerate(workload.aborted_at):
            if when is not None and workload.arrivals[i] + when == step:
                engine.abort(str(i))
        engine.step()
        step += 1
    stats = engine.stats()
    assert stats.held_blocks == 0
    assert stats.free_blocks + stats.cached_blocks == stats.num_blocks
    return recorder


@given(workloads())
@settings(
    max_examples=5000 if DEEP else 200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_law_5_logits_have_the_same_bits_in_any_company(models: Models, workload: Workload) -> None:
    model, backend = models.get(workload.weights, workload.threads)

    recorder = run(workload, model, backend)

    assert recorder.seen or any(when is not None for when in workload.aborted_at)
    check_bits(recorder, models.get(workload.weights, 1)[0], workload.kv_dtype)


@pytest.mark.parametrize("kv_dtype", ["f16", "int16", "int8"])
@pytest.mark.parametrize("instruction_set", available_instruction_sets())
def test_every_instruction_set_keeps_law_5(instruction_set: str, kv_dtype: KVDtype, tmp_path: Path) -> None:
    backend = CpuBackend(num_threads=2, instruction_set=instruction_set)
    model = tiny_model(tmp_path, backend, weight_dtype="q4", vocab_size=VOCAB)
    prompts = [[(5 * i + j) % VOCAB for j in range(40 + i)] for i in range(4)]
    workload = Workload(prompts, [8] * 4, [1, 2, 1, 1], [None] * 4, [0] * 4, 13, 3, 12, kv_dtype, "q4", 2, "radix")

    recorder = run(workload, model, backend)

    check_bits(recorder, model, kv_dtype)


@pytest.mark.parametrize("kv_dtype", ["f16", "int16", "int8"])
def test_the_reference_backend_keeps_law_5_too(kv_dtype: KVDtype, tmp_path: Path) -> None:
    backend = ReferenceBackend()
    model = tiny_model(tmp_path, backend, weight_dtype="q4", vocab_size=VOCAB)
    prompts = [[(5 * i + j) % VOCAB for j in range(17 + i)] for i in range(2)]
    workload = Workload(prompts, [3] * 2, [1, 2], [None] * 2, [0] * 2, 7, 3, 8, kv_dtype, "q4", 1, "none")

    recorder = run(workload, model, backend)

    check_bits(recorder, model, kv_dtype)
