"""Law 5 for probes: scores and hidden states depend on the prompt alone, bit for bit.

What a probe reads in a batch, after a cache hit, in chunks, after preemption is compared by its bytes with a run of
that one prompt alone, computed in one piece over a private cache.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.factories import tiny_model
from tests.oracles.sequential_generate import PrivateCaches

from foreword.core.config import CacheConfig, KVDtype, PrefixCacheKind, SchedulerConfig
from foreword.core.errors import InvalidRequestError
from foreword.core.probe import Probe, Reading
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Usage
from foreword.engine.engine import Engine
from foreword.models.base import Model
from foreword.models.workspace import Workspace
from foreword.ops.backend import Backend
from foreword.ops.cpu import CpuBackend
from foreword.ops.reference import ReferenceBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

VOCAB = 64
ONE = SamplingParams(max_tokens=1)


@dataclass(frozen=True)
class Asked:
    """Prompts with their probes, beside others that generate, and the circumstances."""

    prompts: list[list[int]]
    probes: list[Probe]
    generated: list[list[int]]
    token_budget: int
    max_num_seqs: int
    num_blocks: int
    kv_dtype: KVDtype
    prefix_cache: PrefixCacheKind


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    opening = [(5 * i + 1) % VOCAB for i in range(draw(st.integers(0, 60)))]
    tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
    prompts = [(opening if draw(st.booleans()) else []) + own for own in draw(st.lists(tokens, min_size=1, max_size=6))]
    ids = st.lists(st.integers(0, VOCAB - 1), max_size=4, unique=True)
    probes = []
    for _ in prompts:
        token_ids = tuple(draw(ids))
        probes.append(Probe(token_ids=token_ids, hidden_state=not token_ids or draw(st.booleans())))
    return Asked(
        prompts=prompts,
        probes=probes,
        generated=draw(st.lists(tokens, max_size=2)),
        token_budget=draw(st.sampled_from([1, 3, 16, 17, 64, 512])),
        max_num_seqs=draw(st.integers(1, 8)),
        num_blocks=8 + draw(st.sampled_from([0, 2, 10, 60])),
        kv_dtype=draw(st.sampled_from(["int16", "f16", "f32", "int8"])),
        prefix_cache=draw(st.sampled_from(["radix", "hash", "none"])),
    )


def read(case: Asked, model: Model, backend: Backend, *, rounds: int = 2) -> list[list[tuple[Reading, Usage]]]:
    """What the engine reads, in each of a few rounds over the same cache."""
    cache = CacheConfig(num_blocks=case.num_blocks, kv_dtype=case.kv_dtype, prefix_cache=case.prefix_cache, debug=True)
    config = SchedulerConfig(max_num_seqs=case.max_num_seqs, token_budget=case.token_budget, max_model_len=120)
    runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
    engine = Engine(runner, cache, config)
    found = []
    for number in range(rounds):
        for i, (prompt, probe) in enumerate(zip(case.prompts, case.probes, strict=True)):
            engine.add(f"{number}-{i}", prompt, ONE, probe=probe)
        for i, prompt in enumerate(case.generated):
            engine.add(f"{number}-g{i}", prompt, SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
        readings: dict[str, tuple[Reading, Usage]] = {}
        while engine.has_unfinished:
            for step in engine.step().sequences:
                if step.reading is not None:
                    assert step.request_id not in readings
                    assert step.new_tokens == ()
                    readings[step.request_id] = step.reading, step.usage
        found.append([readings[f"{number}-{i}"] for i in range(len(case.prompts))])
    stats = engine.stats()
    assert stats.sampled_tokens == rounds * 10 * len(case.generated)
    assert stats.held_blocks == 0
    return found


def alone(prompt: list[int], probe: Probe, model: Model, backend: Backend, kv_dtype: KVDtype) -> Reading:
    """The same, the slow and obvious way."""
    caches = PrivateCaches(model.config, len(prompt), kv_dtype=kv_dtype)
    batch = caches.batch(0, len(prompt))
    hidden = model.forward(np.array(prompt, np.int32), batch, caches, Workspace(model.config, len(prompt)))[-1:].copy()
    logits = model.logits(hidden)
    logprobs = [float(backend.top_logprobs(logits, np.array([t], np.int32), 0).logprobs[0]) for t in probe.token_ids]
    state = model.normalised(hidden)[0] if probe.hidden_state else None
    return Reading(
        logprobs=tuple(logprobs),
        hidden_state=None if state is None else memoryview(state).cast("B").cast("f"),  # type: ignore[arg-type]
    )


def check_equal(case: Asked, model: Model, backend: Backend) -> None:
    for found in read(case, model, backend):
        for (reading, _), prompt, probe in zip(found, case.prompts, case.probes, strict=True):
            expected = alone(prompt, probe, model, backend, case.kv_dtype)
            assert reading.logprobs == expected.logprobs
            assert (reading.hidden_state is None) == (expected.hidden_state is None)
            if reading.hidden_state is not None and expected.hidden_state is not None:
                assert reading.hidden_state.tobytes() == expected.hidden_state.tobytes()


@pytest.fixture(scope="module")
def backend() -> Backend:
    return CpuBackend(num_threads=2)


@pytest.fixture(scope="module")
def model(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("readings"), backend, weight_dtype="q4", vocab_size=VOCAB)


@given(asked())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_law_5_readings_have_the_same_bits_in_any_company(model: Model, backend: Backend, case: Asked) -> None:
    check_equal(case, model, backend)


@pytest.mark.parametrize("kv_dtype", ["int16", "f16"])
def test_the_reference_backend_reads_so_too(kv_dtype: KVDtype, tmp_path_factory: pytest.TempPathFactory) -> None:
    backend = ReferenceBackend()
    model = tiny_model(tmp_path_factory.mktemp("reference"), backend, vocab_size=VOCAB)
    prompts = [[(5 * i + j) % VOCAB for j in range(17 + i)] for i in range(3)]
    probes = [Probe(token_ids=(3, 9)), Probe(hidden_state=True), Probe(token_ids=(1,), hidden_state=True)]

    check_equal(Asked(prompts, probes, [[1, 2]], 7, 2, 12, kv_dtype, "radix"), model, backend)


def test_of_prompts_asked_together_the_common_opening_is_computed_once(model: Model, backend: Backend) -> None:
    opening = [(3 * i + 2) % VOCAB for i in range(50)]
    prompts = [[*opening, i, *range(i, i + 9)] for i in range(8)]
    case = Asked(prompts, [Probe(token_ids=(1, 2))] * 8, [], 512, 8, 60, "int16", "radix")

    first, second = read(case, model, backend)

    assert sum(usage.computed_tokens for _, usage in first) == len(opening) + 8 * 10
    assert sum(usage.computed_tokens for _, usage in second) == 8  # the last token of each, as ever


def test_a_probe_outside_the_vocabulary_is_refused_and_nothing_is_changed(model: Model, backend: Backend) -> None:
    cache, config = CacheConfig(num_blocks=8), SchedulerConfig(max_model_len=64)
    runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
    engine = Engine(runner, cache, config)

    with pytest.raises(InvalidRequestError, match="probe"):
        engine.add("a", [1, 2], ONE, probe=Probe(token_ids=(VOCAB,)))

    assert not engine.has_unfinished
    assert not engine.is_live("a")
