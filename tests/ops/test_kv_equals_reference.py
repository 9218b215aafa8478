"""Law 8 for what is stored of K and V, and for attention over it: the kernels equal the NumPy reference."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.ops.backends import BACKENDS, EPS, REFERENCE, backends, normal

from foreword.core.config import KV_SCALE_BYTES, KVDtype
from foreword.core.errors import InvalidRequestError
from foreword.ops.backend import F32, AttentionBatch, Backend
from foreword.ops.cpu import CpuBackend
from foreword.ops.kv_layout import NUMPY_DTYPE, KVParts, array_shapes, key_parts, value_parts


@dataclass(frozen=True)
class Paged:
    """A batch over a shuffled pool, its caches filled by whoever runs it."""

    batch: AttentionBatch
    qkv: F32
    cos_sin: F32
    k: NDArray[Any]
    v: NDArray[Any]


def paged(
    rng: np.random.Generator,
    heads: tuple[int, int],
    head_dim: int,
    lens: list[tuple[int, int]],
    kv_dtype: KVDtype,
    block_size: int = 16,
) -> Paged:
    """`lens`: context and scheduled tokens of each sequence. Slots before the scheduled tokens hold random K and V."""
    num_heads, num_kv_heads = heads
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
                        parts.write(block, offset, normal(rng, num_kv_heads, head_dim))
                    else:
                        most = 127 if kv_dtype == "int8" else 4000
                        parts.write(block, offset, rng.integers(-most, most + 1, (num_kv_heads, head_dim)))
                        parts.scales[block, :, offset] = rng.uniform(0.25, 2.5, num_kv_heads) / most
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
    st.sampled_from(["f32", "f16", "int16", "int8"]),
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
    # A key on the edge may round to either neighbour: in f16 that is its own last bit, in codes a step of its head.
    scales = key_parts(k).scales
    step = 0.0 if scales is None else float(np.nanmax(scales))
    relative = 2.0**-10 if kv_dtype == "f16" else 0.0
    np.testing.assert_allclose(
        key_parts(k).floats(), key_parts(k_expected).floats(), rtol=1e-5 + relative, atol=1e-5 + step * (1 + 1e-5)
    )
    REFERENCE.paged_attention(qkv, case.batch, k, v, head_dim**-0.5, out_expected)  # of what is stored
    np.testing.assert_allclose(out, out_expected, rtol=0, atol=2e-4)


@settings(deadline=None)
@given(backends, st.integers(0, 2**32), st.integers(1, 40), st.sampled_from(["f32", "f16", "int16", "int8"]))
def test_a_block_is_of_any_size_that_holds_whole_pairs(
    backend: CpuBackend, seed: int, block_size: int, kv_dtype: KVDtype
) -> None:
    """Of any size at all, where elements are floats; an odd one is refused in one line where they are codes."""
    rng = np.random.default_rng(seed)
    if KV_SCALE_BYTES[kv_dtype] and block_size % 2:
        with pytest.raises(InvalidRequestError, match=f"^block_size: expected an even number.*, got {block_size}$"):
            paged(rng, (4, 2), 8, [(50, 7)], kv_dtype, block_size)
        with pytest.raises(InvalidRequestError, match=r"^head_dim: expected an even number.*, got 7$"):
            array_shapes(1, 1, 7, 16, kv_dtype)
        return
    case = paged(rng, (4, 2), 8, [(50, 7), (200, 1)], kv_dtype, block_size)
    out, expected = (np.full((8, 32), np.nan, np.float32) for _ in range(2))

    backend.rope_store_kv(case.qkv, case.batch, case.cos_sin, case.k, case.v)
    backend.paged_attention(case.qkv, case.batch, case.k, case.v, 0.3, out)

    REFERENCE.paged_attention(case.qkv, case.batch, case.k, case.v, 0.3, expected)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-4)


@settings(deadline=None)
@given(backends, st.integers(0, 2**32), st.sampled_from([2, 8, 20, 64]), st.sampled_from(["f16", "int16", "int8"]))
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
            stored.append([bytes_of(parts, *slot) for parts in (key_parts(k), value_parts(v))])
        assert stored[0] == stored[1]


def bytes_of(parts: KVParts, block: int, offset: int) -> bytes:
    """A token's elements and their scales."""
    scales = b"" if parts.scales is None else parts.scales[block, :, offset].tobytes()
    return parts.read(block, offset).tobytes() + scales


code_dtypes = st.sampled_from(["int8", "int16"])


@settings(deadline=None)
@given(backends, st.integers(0, 2**32), st.sampled_from([2, 6, 8, 64]), st.floats(1e-30, 1e30), code_dtypes)
def test_a_code_is_within_half_a_step_of_its_value(
    backend: CpuBackend, seed: int, head_dim: int, size: float, kv_dtype: KVDtype
) -> None:
    rng = np.random.default_rng(seed)
    most = 127 if kv_dtype == "int8" else 8191
    every: list[Backend] = [backend, REFERENCE]
    for which in every:
        case = paged(rng, (1, 1), head_dim, [(5, 5)], kv_dtype)
        qkv = np.asarray(case.qkv * np.float32(size), np.float32)
        k, v = case.k.copy(), case.v.copy()
        which.rope_store_kv(qkv, case.batch, case.cos_sin, k, v)

        parts = value_parts(v)
        assert parts.scales is not None
        for head, slot in zip(qkv[:, 2 * head_dim :].astype(np.float64), case.batch.slot_mapping, strict=True):
            block, offset = divmod(int(slot), 16)
            scale, codes = float(parts.scales[block, 0, offset]), parts.read(block, offset)[0].astype(int)
            assert scale == np.float32(np.abs(head).max()) / np.float32(most)
            assert np.abs(codes).max() == most
            # the roundings of a code's own size, beside the half
            assert (np.abs(codes * scale - head) <= scale * (0.5 + most * 4 * EPS)).all()


@settings(deadline=None)
@given(backends, st.integers(0, 2**32), st.sampled_from([2, 6, 8, 20, 64]), st.floats(1e-38, 1e37), code_dtypes)
def test_codes_have_the_bits_of_the_reference_whatever_the_size(
    backend: CpuBackend, seed: int, head_dim: int, size: float, kv_dtype: KVDtype
) -> None:
    case = paged(np.random.default_rng(seed), (2, 2), head_dim, [(20, 20)], kv_dtype)
    qkv = np.asarray(case.qkv * np.float32(size), np.float32)
    still = np.zeros_like(case.cos_sin)
    still[:, : head_dim // 2] = 1  # no rotation, whose products may round otherwise
    k, v, k_expected, v_expected = case.k.copy(), case.v.copy(), case.k.copy(), case.v.copy()

    backend.rope_store_kv(qkv.copy(), case.batch, still, k, v)

    REFERENCE.rope_store_kv(qkv.copy(), case.batch, still, k_expected, v_expected)
    assert k.tobytes() == k_expected.tobytes()
    assert v.tobytes() == v_expected.tobytes()


@settings(deadline=None)
@given(backends, st.integers(0, 2**32), st.sampled_from([2, 8, 64, 256]), st.integers(1, 300), st.floats(0.1, 10))
def test_attention_over_int16_is_as_near_to_floats_as_over_halves(
    backend: CpuBackend, seed: int, head_dim: int, length: int, size: float
) -> None:
    """Rounding by length keeps 15 bits of a key and 14 of a value; a weight loses at most 2 ** -16 of the largest."""
    errors = {name: np.abs(error).max() for name, error in rounding(backend, seed, head_dim, length, size).items()}
    assert errors["int16"] < 2e-3 + 2 * errors["f16"]


@pytest.mark.parametrize("loud", [1, 10, 50, 200])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_int16_rounds_less_than_halves_do_even_where_keys_are_loud_in_one_dimension(head_dim: int, loud: int) -> None:
    """As those of some models are: over many prompts, by the mean square, since either may have the luck in one."""
    squares = {"f16": 0.0, "int16": 0.0}
    for seed in range(60):
        found = rounding(BACKENDS[min(BACKENDS)], seed, head_dim, 2 + 3 * seed, loud=loud)
        for name in squares:
            squares[name] += float(np.square(found[name], dtype=np.float64).mean())
    assert squares["int16"] < squares["f16"]


def rounding(
    backend: CpuBackend, seed: int, head_dim: int, length: int, size: float = 1, loud: float = 1
) -> dict[str, F32]:
    """How far attention of a prompt is from that over f32; scores are `size` times as large, keys loud in one place."""
    outputs: dict[str, F32] = {}
    kv_dtypes: tuple[KVDtype, ...] = ("f32", "f16", "int16")
    for kv_dtype in kv_dtypes:
        case = paged(np.random.default_rng(seed), (2, 1), head_dim, [(length, length)], kv_dtype)
        qkv = case.qkv.reshape(length, 4, head_dim).copy()
        qkv[:, :3] *= np.float32(np.sqrt(size))
        qkv[:, 2, 0] *= np.float32(loud)
        out = outputs[kv_dtype] = np.empty((length, 2 * head_dim), np.float32)
        backend.rope_store_kv(qkv.reshape(length, -1), case.batch, case.cos_sin, case.k, case.v)
        backend.paged_attention(qkv.reshape(length, -1), case.batch, case.k, case.v, head_dim**-0.5, out)
    return {name: out - outputs["f32"] for name, out in outputs.items()}


@pytest.mark.parametrize("kv_dtype", ["int8", "int16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_every_value_of_its_head_and_in_no_other(bad: float, kv_dtype: KVDtype) -> None:
    every: list[Backend] = [*BACKENDS.values(), REFERENCE]
    for backend in every:
        case = paged(np.random.default_rng(2), (2, 2), 8, [(3, 3)], kv_dtype)
        case.qkv[1, 4 * 8 + 5] = bad  # the second token's first value head
        out = np.empty((3, 16), np.float32)
        backend.rope_store_kv(case.qkv, case.batch, case.cos_sin, case.k, case.v)

        backend.paged_attention(case.qkv, case.batch, case.k, case.v, 0.3, out)

        assert np.isnan(out[1:, :8]).all()
        assert np.isfinite(out[1:, 8:]).all()
        assert np.isfinite(out[0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int16, np.int8])
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
