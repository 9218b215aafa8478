"""All layers as one call of the backend: the bits of the kernels called one by one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.factories import tiny_model

from foreword.models.llama import Llama
from foreword.models.workspace import Workspace
from foreword.ops.backend import F32, AttentionBatch, Backend, DecoderSizes, HeadOutputs
from foreword.ops.cpu import CpuBackend, available_instruction_sets
from foreword.ops.reference import ReferenceBackend

BLOCK_SIZE, MAX_BLOCKS, MAX_TOKENS = 8, 16, 64


@dataclass
class Pool:
    """K and V of several sequences, each of whose blocks follow one another."""

    k: list[NDArray[Any]]
    v: list[NDArray[Any]]

    def k_cache(self, layer: int) -> NDArray[Any]:
        return self.k[layer]

    def v_cache(self, layer: int) -> NDArray[Any]:
        return self.v[layer]


def pool_of(model: Llama, num_sequences: int, dtype: Any) -> Pool:
    config, random = model.config, np.random.default_rng(3)
    shape = (num_sequences * MAX_BLOCKS, config.num_kv_heads, config.head_dim, BLOCK_SIZE)
    k = [random.standard_normal(shape).astype(dtype) for _ in range(config.num_layers)]
    return Pool(k, [np.ascontiguousarray(np.swapaxes(array, 2, 3)) for array in k])


def batch_of(scheduled: list[tuple[int, int]]) -> AttentionBatch:
    """`(start, tokens)` of each sequence."""
    positions = [np.arange(start, start + count, dtype=np.int32) for start, count in scheduled]
    slots = [row * MAX_BLOCKS * BLOCK_SIZE + at for row, at in enumerate(positions)]
    return AttentionBatch(
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots).astype(np.int32),
        block_tables=np.arange(len(scheduled) * MAX_BLOCKS, dtype=np.int32).reshape(len(scheduled), -1),
        query_start_loc=np.cumsum([0, *(count for _, count in scheduled)], dtype=np.int32),
        context_lens=np.array([start + count for start, count in scheduled], np.int32),
    )


def cpu_model(folder: Path, instruction_set: str = "auto", **changes: Any) -> Llama:
    model = tiny_model(folder, CpuBackend(num_threads=2, instruction_set=instruction_set), **changes)
    assert isinstance(model, Llama)
    return model


def both_ways(model: Llama, scheduled: list[tuple[int, int]], rows: list[int] | None, dtype: Any) -> list[list[bytes]]:
    """Hidden states, logits, K and V: in one call, and kernel by kernel."""
    batch, workspace = batch_of(scheduled), Workspace(model.config, MAX_TOKENS)
    tokens = np.random.default_rng(4).integers(0, 256, len(batch.positions), dtype=np.int32)
    picked = None if rows is None else np.array(rows, np.int32)
    cos_sin = model.weights.rotary.first(MAX_BLOCKS * BLOCK_SIZE)
    found = []
    for one_call in (True, False):
        pool = pool_of(model, len(scheduled), dtype)
        num_rows = len(tokens if rows is None else rows)
        logits: F32 = np.empty((num_rows, model.config.vocab_size), np.float32)
        best = np.empty(num_rows, np.int32)
        if one_call:
            hidden = model.forward(tokens, batch, pool, workspace, rows=picked, head=HeadOutputs(logits, best, 250))
        else:
            hidden = model.forward_by_kernels(tokens, batch, cos_sin, pool, workspace, picked)
            best[:] = np.argmax(model.logits(hidden, logits)[:, :250], axis=1)
        found.append(
            [hidden.tobytes(), logits.tobytes(), best.tobytes(), *(array.tobytes() for array in (*pool.k, *pool.v))]
        )
    return found


@pytest.fixture(scope="module", params=available_instruction_sets())
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Llama]:
    folder = tmp_path_factory.mktemp("models")
    return [
        cpu_model(folder / "llama", request.param, architecture="llama"),
        cpu_model(folder / "qwen2", request.param, architecture="qwen2", weight_dtype="q8"),  # biases
        cpu_model(folder / "qwen3", request.param, architecture="qwen3", weight_dtype="q4"),  # norms of q and k
    ]


@given(data=st.data())
def test_one_call_has_the_bits_of_its_kernels(data: st.DataObject, models: list[Llama]) -> None:
    model = data.draw(st.sampled_from(models))
    one = st.tuples(st.integers(0, 100), st.sampled_from([1, 1, 1, 2, 9]))
    scheduled = data.draw(st.lists(one, min_size=1, max_size=5))
    num_tokens = sum(count for _, count in scheduled)
    rows = data.draw(st.none() | st.sets(st.integers(0, num_tokens - 1)).map(sorted))
    dtype = data.draw(st.sampled_from([np.float32, np.float16]))

    one_call, by_kernels = both_ways(model, scheduled, rows, dtype)

    assert one_call == by_kernels


def test_a_decoder_goes_over_to_other_caches_and_buffers(tmp_path: Path) -> None:
    model = cpu_model(tmp_path)
    first = both_ways(model, [(0, 3), (20, 1)], None, np.float32)
    second = both_ways(model, [(5, 1)], None, np.float16)

    assert first[0] == first[1]
    assert second[0] == second[1]


def test_the_reference_has_no_such_call(tmp_path: Path) -> None:
    backend: Backend = ReferenceBackend()
    model = tiny_model(tmp_path, backend)
    assert isinstance(model, Llama)
    config = model.config
    sizes = DecoderSizes(config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps, 1.0)

    assert backend.decoder(model.weights, sizes) is None
