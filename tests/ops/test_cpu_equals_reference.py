"""Law 8: the C++ kernels equal the NumPy reference within a derived tolerance.

Tolerances come from counting roundings: a sum of K products in f32 errs by at most about K · eps · Σ|terms|, and in
practice by a small multiple of √K · eps; each test scales with the magnitudes it sums.
"""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.backends import BACKENDS, EPS, REFERENCE, backends, normal

from foreword.ops.backend import F32, SamplingBatch
from foreword.ops.cpu import CpuBackend
from foreword.ops.raw_tensor import MatrixPart, RawTensor
from foreword.ops.reference import uniform_at

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")


def raw(values: F32, kind: str) -> RawTensor:
    data = quantize(values, GGMLQuantizationType[kind])
    return RawTensor("w", kind, values.shape, np.ascontiguousarray(data).view(np.uint8).reshape(-1))


def q4_k(rows: int, cols: int, rng: np.random.Generator) -> RawTensor:
    """Random super-blocks: two f16 factors, twelve bytes of 6-bit scales and minima, 128 bytes of nibbles."""
    blocks = rng.integers(0, 256, (rows * cols // 256, 144), dtype=np.uint8)
    blocks[:, :4] = rng.uniform(0.01, 0.1, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    return RawTensor("w", "Q4_K", (rows, cols), blocks.reshape(-1))


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
