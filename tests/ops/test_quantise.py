import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from foreword.ops.ggml_types import GGML_TYPE_BY_NAME, GGML_TYPES
from foreword.ops.quantise import dequantise, is_finite, requantise
from foreword.ops.raw_tensor import PACKED_EXACTLY, RawTensor

DEQUANTISED_BY_GGUF = sorted(kind.name for kind in quants._type_traits)
RNG = np.random.default_rng(7)


def raw(values: NDArray[np.float32], type_name: str) -> RawTensor:
    data = quants.quantize(values, GGMLQuantizationType[type_name])
    return RawTensor("w", type_name, values.shape, np.ascontiguousarray(data).reshape(-1).view(np.uint8))


def relative_error(values: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean((values - exact) ** 2) / np.mean(exact**2)))


def random_rows(type_name: str, num_rows: int) -> RawTensor:
    """Rows of 256: normal values, or in block types random bits that stand for values of a usual size."""
    kind = GGML_TYPE_BY_NAME[type_name]
    if kind.block_size == 1:
        return raw(RNG.standard_normal((num_rows, 256)).astype(np.float32), type_name)
    wanted = num_rows * 256 // kind.block_size
    kept: list[NDArray[np.uint8]] = []
    while sum(map(len, kept)) < wanted:
        blocks = RNG.integers(0, 256, (4096, kind.block_bytes)).astype(np.uint8)
        with np.errstate(all="ignore"):
            values = quants.dequantize(blocks, GGMLQuantizationType[type_name])
        peaks = np.abs(values).max(axis=1)
        kept.append(blocks[np.isfinite(values).all(axis=1) & (peaks > 1e-2) & (peaks < 1e3)])
    return RawTensor("w", type_name, (num_rows, 256), np.concatenate(kept)[:wanted].reshape(-1))


def test_our_table_of_types_is_gguf_s() -> None:
    ours = {(kind.code, kind.name): (kind.block_size, kind.block_bytes) for kind in GGML_TYPES}

    assert ours == {(int(kind), kind.name): GGML_QUANT_SIZES[kind] for kind in GGMLQuantizationType}


@pytest.mark.parametrize("type_name", DEQUANTISED_BY_GGUF)
def test_every_type_gguf_reads_becomes_8_bit_within_one_percent(type_name: str) -> None:
    tensor = random_rows(type_name, 8)

    exact = dequantise(tensor)
    eight_bit = requantise(tensor, "Q8_0")

    assert exact.shape == (8, 256)
    assert eight_bit.shape == (8, 256)
    assert is_finite(eight_bit)
    assert relative_error(dequantise(eight_bit), exact) < 0.012


@pytest.mark.parametrize(("type_name", "stated"), [("Q8_0", 0.006), ("Q4_1", 0.08)])
def test_the_loss_on_normal_weights_is_as_stated(type_name: str, stated: float) -> None:
    values = RNG.standard_normal((64, 256)).astype(np.float32)

    loss = relative_error(dequantise(requantise(raw(values, "F32"), type_name)), values)

    assert 0.5 * stated < loss <= stated


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_float_types_are_read_exactly(type_name: str) -> None:
    values = np.array([[1.5, -2.0, 0.0, 1024.0]], np.float32)

    assert np.array_equal(dequantise(raw(values, type_name)), values)
    assert requantise(raw(values, type_name), "F32").type == "F32"


def test_doubles_are_rounded_to_f32() -> None:
    values = np.array([[0.1, 1e-3]])
    tensor = RawTensor("w", "F64", (1, 2), values.view(np.uint8).reshape(-1))

    assert np.array_equal(dequantise(tensor), values.astype(np.float32))


def test_large_tensors_are_converted_piece_by_piece_with_the_same_bits() -> None:
    values = RNG.standard_normal((2100, 4096)).astype(np.float32)  # more than two pieces of 4 Mi values

    whole = quants.quantize(values, GGMLQuantizationType.Q8_0)

    assert requantise(raw(values, "F32"), "Q8_0").data.tobytes() == whole.tobytes()


@pytest.mark.parametrize("type_name", ["I8", "I16", "I32", "I64", "Q8_1", "Q8_K", "F8_E4M3", "nonsense"])
def test_what_are_no_weights_is_refused(type_name: str) -> None:
    tensor = RawTensor("w", type_name, (1, 256), np.zeros(292, np.uint8))

    with pytest.raises(ValueError, match=f"weights of type {type_name} are not supported"):
        dequantise(tensor)


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    tensor = raw(np.zeros((1, 40), np.float32), "F32")

    with pytest.raises(ValueError, match="rows of 40 values are no whole blocks of Q8_0"):
        requantise(tensor, "Q8_0")


def test_a_type_it_has_already_is_left_as_it_is() -> None:
    tensor = raw(np.zeros((1, 64), np.float32), "Q4_1")

    assert requantise(tensor, "Q4_1") is tensor


@pytest.mark.parametrize("type_name", PACKED_EXACTLY)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_seen(type_name: str, bad: float) -> None:
    kind = GGML_TYPE_BY_NAME[type_name]
    tensor = random_rows(type_name, 4)
    assert is_finite(tensor)
    halves = {"F32": ("<f4", kind.block_bytes), "F16": ("<f2", 2), "BF16": ("<u2", 2)}

    data = tensor.data.copy()
    if type_name == "BF16":
        data.view("<u2")[333] = np.array([bad], "<f4").view("<u4")[0] >> 16
    elif type_name in halves:
        data.view(halves[type_name][0])[333] = bad
    else:
        data[3 * kind.block_bytes :][:2] = np.array([bad], "<f2").view(np.uint8)

    assert not is_finite(RawTensor("w", type_name, tensor.shape, data))


@pytest.mark.parametrize("type_name", ["Q4_1", "Q4_K"])
def test_a_bad_minimum_is_seen(type_name: str) -> None:
    tensor = random_rows(type_name, 4)
    data = tensor.data.copy()
    data[2:4] = np.array([np.nan], "<f2").view(np.uint8)

    assert not is_finite(RawTensor("w", type_name, tensor.shape, data))


def test_large_finite_values_are_no_false_alarm() -> None:
    values = np.full((4, 64), 3e38, np.float32)  # their sum overflows

    assert is_finite(raw(values, "F32"))
