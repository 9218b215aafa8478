"""Law 8: the C++ kernels equal the NumPy reference within a derived tolerance.

Tolerances come from counting roundings: a sum of K products in f32 errs by at most about K · eps · Σ|terms|, and in
practice by a small multiple of √K · eps; each test scales with the magnitudes it sums.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from foreword.core.config import KVDtype
from foreword.ops.backend import F32, AttentionBatch, Backend, SamplingBatch
from foreword.ops.cpu import CpuBackend, available_instruction_sets
from foreword.ops.kv_layout import NUMPY_DTYPE, array_shapes, key_parts, value_parts
from foreword.ops.raw_tensor import MatrixPart, RawTensor
from foreword.ops.reference import ReferenceBackend, uniform_at

EPS = float(np.finfo(np.float32).eps)
REFERENCE = ReferenceBackend()
BACKENDS = {
    (isa, threads): CpuBackend(num_threads=threads, instruction_set=isa)
    for isa in available_instruction_sets()
    for threads in (1, 2)
}
backends = st.sampled_from(sorted(BACKENDS)).map(BACKENDS.__getitem__)
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")


def raw(values: F32, kind: str) -> RawTensor:
    data = quantize(values, GGMLQuantizationType[kind])
    return RawTensor("w", kind, values.shape, np.ascontiguousarray(data).view(np.uint8).reshape(-1))


def q4_k(rows: int, cols: int, rng: np.random.Generator) -> RawTensor:
    """Random super-blocks: two f16 factors, twelve bytes of 6-bit scales and minima, 128 bytes of nibbles."""
    blocks = rng.integers(0, 256, (rows * cols // 256, 144), dtype=np.uint8)
    blocks[:, :4] = rng.uniform(0.01, 0.1, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    return RawTensor("w", "Q4_K", (rows, cols), blocks.reshape(-1))


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return np.asarray(rng.standard_normal(shape), np.float32)


@settings(deadline=None)
@given(
    backends,
    st.sampled_from([*TYPES, "Q4_K"]),
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 70),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_products_of_every_format(
    backend: CpuBackend, kind: str, seed: int, rows: int, outputs: int, groups: int, accumulate: bool, biased: bool
) -> None:
    rng = np.random.default_rng(seed)
    cols = groups * (256 if kind == "Q4_K" else 32)
    tensor = q4_k(outputs, cols, rng) if kind == "Q4_K" else raw(normal(rng, outputs, cols), kind)
    order = rng.permutation(outputs).astype(np.int32) if seed % 2 else None
    parts = [MatrixPart(tensor, order)]
    x, bias = normal(rng, rows, cols), normal(rng, outputs) if biased else None
    got, expected = (np.ones((rows, outputs), np.float32) for _ in range(2))

    backend.linear(x, backend.pack_matrix(parts), got, bias=bias, accumulate=accumulate)

    packed = REFERENCE.pack_matrix(parts)
    REFERENCE.linear(x, packed, expected, bias=bias, accumulate=accumulate)
    # A quantised product must make the same integers: only its few float operations a group may round otherwise.
    terms = np.abs(x).max() * np.abs(packed.values).sum(axis=1).max() + 2
    np.testing.assert_allclose(got, expected, rtol=0, atol=4 * np.sqrt(cols) * EPS * terms)


@given(backends, st.integers(0, 2**32), st.integers(1, 9))
@settings(deadline=None)
def test_fused_products_have_the_bits_of_their_parts(backend: CpuBackend, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = backend.pack_matrix([MatrixPart(raw(normal(rng, 48, 64), "Q4_1"))])
    x, weight = normal(rng, rows, 64), normal(rng, 64)
    normed, fused, apart = np.empty_like(x), np.empty((rows, 48), np.float32), np.empty((rows, 48), np.float32)

    backend.norm_linear(x, weight, 1e-6, matrix, fused)

    backend.rms_norm(x, weight, 1e-6, normed)
    backend.linear(normed, matrix, apart)
    assert fused.tobytes() == apart.tobytes()


@given(backends, st.integers(0, 2**32), st.integers(1, 9))
@settings(deadline=None)
def test_swiglu_products(backend: CpuBackend, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [MatrixPart(raw(normal(rng, 24, 96), "F32"))]
    gate_up = 4 * normal(rng, rows, 192)
    got, expected = np.empty((rows, 24), np.float32), np.empty((rows, 24), np.float32)

    backend.swiglu_linear(gate_up, backend.pack_matrix(parts), got)

    REFERENCE.swiglu_linear(gate_up, REFERENCE.pack_matrix(parts), expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=64 * EPS * (1 + np.abs(gate_up).max()) ** 2 * np.sqrt(96))


@pytest.mark.parametrize("kind", TYPES)
def test_embedding_rows_are_the_tables_values(kind: str) -> None:
    rng = np.random.default_rng(5)
    parts = [MatrixPart(raw(normal(rng, 37, 64), kind))]
    ids = np.array([36, 0, 7, 7, 20], np.int32)
    for backend in BACKENDS.values():
        got, expected = np.empty((5, 64), np.float32), np.empty((5, 64), np.float32)

        backend.embed(backend.pack_matrix(parts), ids, got)

        REFERENCE.embed(REFERENCE.pack_matrix(parts), ids, expected)
        np.testing.assert_allclose(got, expected, rtol=2 * EPS, atol=0)


@dataclass(frozen=True)
class Paged:
    """A batch over a shuffled pool, its caches filled by whoever runs it."""

    batch: AttentionBatch
    qkv: F32
    cos_sin: F32
    k: NDArray[Any]
    v: NDArray[Any]


def paged(
    rng: np.random.Generator, heads: tuple[int, int], head_dim: int, lens: list[tuple[int, int]], kv_dtype: KVDtype
) -> Paged:
    """`lens`: context and scheduled tokens of each sequence. Slots before the scheduled tokens hold random K and V."""
    num_heads, num_kv_heads = heads
    block_size = 16
    counts = [-(-context // block_size) for context, _ in lens]
    blocks = rng.permutation(sum(counts)).astype(np.int32)
    tables = np.zeros((len(lens), max(counts)), np.int32)
    positions, slots, starts, taken = [], [], [0], 0
    k_shape, v_shape = array_shapes(sum(counts), num_kv_heads, head_dim, block_size, kv_dtype)
    k, v = np.empty(k_shape, NUMPY_DTYPE[kv_dtype]), np.empty(v_shape, NUMPY_DTYPE[kv_dtype])
    keys, values = key_parts(k), value_parts(v)
    for parts in (keys, values):
        parts.poison(slice(None))
    for row, ((context, scheduled), count) in enumerate(zip(lens, counts, strict=True)):
        tables[row, :count] = blocks[taken : taken + count]
        taken += count
        for position in range(context):
            block, offset = tables[row, position // block_size], position % block_size
            if position < context - scheduled:
                for parts in (keys, values):
                    if parts.scales is None:
                        parts.values[block, :, offset] = normal(rng, num_kv_heads, head_dim)
                    else:
                        parts.values[block, :, offset] = rng.integers(-127, 128, (num_kv_heads, head_dim))
                        parts.scales[block, :, offset] = rng.uniform(0.002, 0.02, num_kv_heads)
            else:
                positions.append(position)
                slots.append(block * block_size + offset)
        starts.append(len(positions))
    batch = AttentionBatch(
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int32),
        block_tables=tables,
        query_start_loc=np.array(starts, np.int32),
        context_lens=np.array([context for context, _ in lens], np.int32),
    )
    angles = np.outer(np.arange(600), 0.7 ** np.arange(head_dim // 2))
    cos_sin = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Paged(batch, normal(rng, len(positions), (num_heads + 2 * num_kv_heads) * head_dim), cos_sin, k, v)


@settings(deadline=None)
@given(
    backends,
    st.integers(0, 2**32),
    st.sampled_from([(4, 4), (9, 3), (4, 1), (6, 2)]),
    st.sampled_from([2, 8, 16, 20, 64]),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 20)), min_size=1, max_size=3),
    st.sampled_from(["f32", "f16", "int8"]),
    st.booleans(),
)
def test_rope_store_and_attention(
    backend: CpuBackend,
    seed: int,
    heads: tuple[int, int],
    head_dim: int,
    lens: list[tuple[int, int]],
    kv_dtype: KVDtype,
    normed: bool,
) -> None:
    rng = np.random.default_rng(seed)
    case = paged(rng, heads, head_dim, [(before + new, new) for before, new in lens], kv_dtype)
    norms: dict[str, Any] = {}
    if normed:
        norms = {"q_norm": normal(rng, head_dim), "k_norm": normal(rng, head_dim), "eps": 1e-6}
    (qkv, k, v), (qkv_expected, k_expected, v_expected) = (
        (case.qkv.copy(), case.k.copy(), case.v.copy()) for _ in range(2)
    )
    out, out_expected = (np.full((len(qkv), heads[0] * head_dim), np.nan, np.float32) for _ in range(2))

    backend.rope_store_kv(qkv, case.batch, case.cos_sin, k, v, **norms)
    backend.paged_attention(qkv, case.batch, k, v, head_dim**-0.5, out)

    REFERENCE.rope_store_kv(qkv_expected, case.batch, case.cos_sin, k_expected, v_expected, **norms)
    np.testing.assert_allclose(qkv, qkv_expected, rtol=1e-5, atol=1e-5)
    assert v.tobytes() == v_expected.tobytes()  # nothing is computed before it is rounded
    # A key on the edge may round to either neighbour: in f16 that is its own last bit, in int8 a step of its head.
    scales = key_parts(k).scales
    step = 0.0 if scales is None else float(np.nanmax(scales))
    relative = 2.0**-10 if kv_dtype == "f16" else 0.0
    np.testing.assert_allclose(
        stored_floats(k), stored_floats(k_expected), rtol=1e-5 + relative, atol=1e-5 + step * (1 + 1e-5)
    )
    REFERENCE.paged_attention(qkv, case.batch, k, v, head_dim**-0.5, out_expected)  # of what is stored
    np.testing.assert_allclose(out, out_expected, rtol=0, atol=2e-4)


def stored_floats(k_cache: NDArray[Any]) -> F32:
    """What an array of keys stands for."""
    values, scales = key_parts(k_cache)
    floats: F32 = values.astype(np.float32)
    return floats if scales is None else floats * scales[..., None]


@settings(deadline=None)
@given(backends, st.integers(0, 2**32), st.sampled_from([2, 8, 20, 64]), st.sampled_from(["f16", "int8"]))
def test_what_is_stored_of_a_token_is_its_own_alone(
    backend: CpuBackend, seed: int, head_dim: int, kv_dtype: KVDtype
) -> None:
    """Neighbours of any size, in the same block and step or not, leave every byte of a token as it is."""
    rng = np.random.default_rng(seed)
    every: list[Backend] = [backend, REFERENCE]
    for which in every:
        case = paged(rng, (2, 1), head_dim, [(30, 30)], kv_dtype)
        qkv = case.qkv.reshape(30, 4, head_dim)
        mine, loud = int(rng.integers(30)), case.qkv.copy().reshape(30, 4, head_dim)
        loud[np.arange(30) != mine] *= np.float32(1000)
        stored = []
        for given_qkv in (qkv, loud):
            k, v = case.k.copy(), case.v.copy()
            which.rope_store_kv(given_qkv.reshape(30, -1).copy(), case.batch, case.cos_sin, k, v)
            slot = divmod(int(case.batch.slot_mapping[mine]), 16)
            stored.append([part[slot[0], :, slot[1]].tobytes() for part in all_parts(k, v)])
        assert stored[0] == stored[1]


def all_parts(k: NDArray[Any], v: NDArray[Any]) -> list[NDArray[Any]]:
    """Values and scales of both arrays, each indexed by block, head and offset."""
    return [part for parts in (key_parts(k), value_parts(v)) for part in parts if part is not None]


@settings(deadline=None)
@given(backends, st.integers(0, 2**32), st.sampled_from([2, 6, 8, 64]), st.floats(1e-30, 1e30))
def test_a_code_is_within_half_a_step_of_its_value(backend: CpuBackend, seed: int, head_dim: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    every: list[Backend] = [backend, REFERENCE]
    for which in every:
        case = paged(rng, (1, 1), head_dim, [(5, 5)], "int8")
        qkv = np.asarray(case.qkv * np.float32(size), np.float32)
        k, v = case.k.copy(), case.v.copy()
        which.rope_store_kv(qkv, case.batch, case.cos_sin, k, v)

        codes, scales = value_parts(v)
        assert scales is not None
        for head, slot in zip(qkv[:, 2 * head_dim :].astype(np.float64), case.batch.slot_mapping, strict=True):
            block, offset = divmod(int(slot), 16)
            scale = float(scales[block, 0, offset])
            assert scale == np.float32(np.abs(head).max()) / np.float32(127)
            assert np.abs(codes[block, 0, offset].astype(int)).max() == 127
            # 127 roundings' worth of a step's own rounding, beside the half
            assert (np.abs(codes[block, 0, offset] * scale - head) <= scale * (0.5 + 127 * 4 * EPS)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_every_value_of_its_head_and_in_no_other(bad: float) -> None:
    every: list[Backend] = [*BACKENDS.values(), REFERENCE]
    for backend in every:
        case = paged(np.random.default_rng(2), (2, 2), 8, [(3, 3)], "int8")
        case.qkv[1, 4 * 8 + 5] = bad  # the second token's first value head
        out = np.empty((3, 16), np.float32)
        backend.rope_store_kv(case.qkv, case.batch, case.cos_sin, case.k, case.v)

        backend.paged_attention(case.qkv, case.batch, case.k, case.v, 0.3, out)

        assert np.isnan(out[1:, :8]).all()
        assert np.isfinite(out[1:, 8:]).all()
        assert np.isfinite(out[0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_copy_blocks_copies_whole_blocks_in_order(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    every: list[Backend] = [*BACKENDS.values(), REFERENCE]
    for backend in every:
        k, v = ((10 * normal(rng, *shape)).astype(dtype) for shape in ((5, 2, 12, 16), (5, 2, 16, 12)))
        k_expected, v_expected = k.copy(), v.copy()
        for array in (k_expected, v_expected):
            array[3] = array[0]
            array[4] = array[3]

        backend.copy_blocks(k, v, np.array([0, 3], np.int32), np.array([3, 4], np.int32))

        assert (k == k_expected).all()
        assert (v == v_expected).all()


@settings(deadline=None)
@given(
    backends,
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(0, 30),
    st.floats(0.05, 1.0),
    st.floats(0.0, 1.0),
    st.sampled_from([0.0, 0.3, 1.0, 4.0]),
)
def test_sampling_draws_the_references_tokens(
    backend: CpuBackend, seed: int, rows: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = np.asarray(rng.normal(0, 3, (rows, 77)).round(1), np.float32)  # rounding makes ties
    batch = SamplingBatch(
        temperature=np.full(rows, temperature, np.float32),
        top_k=np.full(rows, top_k, np.int32),
        top_p=np.full(rows, top_p, np.float32),
        min_p=np.full(rows, min_p, np.float32),
        seed=np.full(rows, seed, np.uint64),
        sequence_index=np.arange(rows, dtype=np.uint32),
        position=np.full(rows, 3, np.uint32),
    )

    assert backend.sample(logits, batch).tolist() == REFERENCE.sample(logits, batch).tolist()


@settings(deadline=None)
@given(backends, st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 20))
def test_logprobs_and_ranks(backend: CpuBackend, seed: int, rows: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    logits = np.asarray(rng.normal(0, 3, (rows, 77)).round(1), np.float32)
    tokens = rng.integers(0, 77, rows).astype(np.int32)

    got, expected = backend.top_logprobs(logits, tokens, k), REFERENCE.top_logprobs(logits, tokens, k)

    assert got.ranks.tolist() == expected.ranks.tolist()
    assert got.top_ids.tolist() == expected.top_ids.tolist()
    np.testing.assert_allclose(got.logprobs, expected.logprobs, rtol=0, atol=4e-6)
    np.testing.assert_allclose(got.top_logprobs, expected.top_logprobs, rtol=0, atol=4e-6)


def test_uniform_draws_are_the_published_generators() -> None:
    from foreword import _native

    for seed, index, position in ((0, 0, 0), (2**64 - 1, 3, 9), (12345, 0, 2**32 - 1)):
        assert _native.uniform_at(seed, index, position) == uniform_at(seed, index, position)
