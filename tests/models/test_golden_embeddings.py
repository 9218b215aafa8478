"""Embeddings equal those of `transformers`, f32, on tiny models of each architecture and rotary variant."""

from pathlib import Path

import numpy as np
import pytest

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.probe import Reading
from foreword.core.sampling_params import SamplingParams
from foreword.engine.engine import Engine
from foreword.llm.readings import EMBEDDING, embedding
from foreword.models.registry import load_model
from foreword.ops.backend import Backend
from foreword.ops.cpu import CpuBackend
from foreword.ops.reference import ReferenceBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

GOLDEN = Path(__file__).parent.parent / "golden"
TINY = sorted(folder.name for folder in GOLDEN.iterdir() if (folder / "golden.npz").is_file())
TOLERANCE = 1e-5  # of vectors of length one


@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend(num_threads=2)], ids=["reference", "cpu"])
@pytest.mark.parametrize("name", TINY)
def test_embeddings_equal_those_of_transformers(name: str, backend: Backend) -> None:
    golden = np.load(GOLDEN / "embeddings.npz")
    prompts = [key.removesuffix("/prompt") for key in golden if key.startswith(f"{name}/") and key.endswith("/prompt")]
    model = load_model(GOLDEN / name, backend)
    cache, config = CacheConfig(num_blocks=40, kv_dtype="f32"), SchedulerConfig(max_model_len=200, token_budget=48)
    runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
    engine = Engine(runner, cache, config)

    for key in prompts:
        engine.add(key, golden[f"{key}/prompt"].tolist(), SamplingParams(max_tokens=1), probe=EMBEDDING)
    found: dict[str, Reading | None] = {}
    while engine.has_unfinished:
        found |= {step.request_id: step.reading for step in engine.step().sequences}

    assert len(prompts) == 3
    for key in prompts:
        reading = found[key]
        assert reading is not None
        assert np.abs(np.array(embedding(reading)) - golden[f"{key}/embedding"]).max() <= TOLERANCE
