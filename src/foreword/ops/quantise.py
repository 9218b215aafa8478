"""Weights from one GGML type to another, through the `gguf` library's own quantisers.

`gguf` is imported when first needed: it takes a tenth of a second, and a file of exactly packed types never needs it.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from foreword.ops.backend import F32
from foreword.ops.ggml_types import GGML_TYPE_BY_NAME
from foreword.ops.raw_tensor import RawTensor

_CHUNK_VALUES = 1 << 22  # values converted at once: 16 MB of f32, whatever the tensor's size
_NUMPY_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "F64": np.dtype("<f8")}
# Where a block's scales lie: (first byte, bytes), f16 each. Integers in a block cannot be anything but finite.
_SCALE_BYTES = {"Q4_0": (0, 2), "Q4_1": (0, 4), "Q4_K": (0, 4), "Q8_0": (0, 2)}


def can_dequantise(type_name: str) -> bool:
    """Whether `dequantise` knows the type: all of `gguf`'s but integers and the formats of intermediate results."""
    if type_name in _NUMPY_DTYPES:
        return True
    from gguf import GGMLQuantizationType, quants

    return type_name in GGML_TYPE_BY_NAME and GGMLQuantizationType[type_name] in quants._type_traits


def dequantise(tensor: RawTensor) -> F32:
    """Values of a tensor, f32, in its shape. F64 is rounded to f32, everything else is exact.

    Raises
        ValueError: no values can be made of this type.
    """
    if tensor.type in _NUMPY_DTYPES:
        return tensor.data.view(_NUMPY_DTYPES[tensor.type]).reshape(tensor.shape).astype(np.float32)
    return _by_rows(tensor, np.float32, tensor.shape, lambda values: values)


def requantise(tensor: RawTensor, type_name: str) -> RawTensor:
    """Express a matrix in another type: `F32`, `Q8_0` or `Q4_1`.

    Loss, as relative root mean square error on normally distributed weights: Q8_0 0.6 %, Q4_1 8 %.

    Raises
        ValueError: no values can be made of the tensor's type, or its rows are no whole blocks of the new one.
    """
    if type_name == tensor.type:
        return tensor
    row_bytes = GGML_TYPE_BY_NAME[type_name].row_bytes(tensor.shape[-1])
    if row_bytes is None:
        raise ValueError(f"{tensor.name}: rows of {tensor.shape[-1]} values are no whole blocks of {type_name}")
    if type_name == "F32":
        return RawTensor(tensor.name, "F32", tensor.shape, dequantise(tensor).reshape(-1).view(np.uint8))
    from gguf import GGMLQuantizationType, quants

    wanted = GGMLQuantizationType[type_name]
    packed = _by_rows(tensor, np.uint8, (*tensor.shape[:-1], row_bytes), lambda values: quants.quantize(values, wanted))
    return RawTensor(tensor.name, type_name, tensor.shape, packed.reshape(-1))


def is_finite(tensor: RawTensor) -> bool:
    """Whether no value is infinite or not a number; looks at scales alone where a type has them.

    Raises
        ValueError: no values can be made of this type.
    """
    if tensor.type == "BF16":
        return not np.any(tensor.data.view("<u2") & 0x7F80 == 0x7F80)
    if tensor.type == "F16":
        return not np.any(tensor.data.view("<u2") & 0x7C00 == 0x7C00)
    if tensor.type in _SCALE_BYTES:
        start, length = _SCALE_BYTES[tensor.type]
        blocks = tensor.data.reshape(-1, GGML_TYPE_BY_NAME[tensor.type].block_bytes)
        scales = np.ascontiguousarray(blocks[:, start : start + length]).view("<u2")
        return not np.any(scales & 0x7C00 == 0x7C00)
    # A sum is one pass with no temporary: it is finite unless a value is not (or finite values overflow it).
    values = tensor.data.view("<f4") if tensor.type == "F32" else dequantise(tensor).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum())) or bool(np.isfinite(values).all())


def _by_rows(
    tensor: RawTensor, dtype: type[np.generic], shape: tuple[int, ...], convert: Callable[[F32], NDArray[np.generic]]
) -> NDArray[np.generic]:
    """Dequantise and convert a few rows at a time into a new array of `shape`."""
    from gguf import GGMLQuantizationType, quants

    if not can_dequantise(tensor.type):
        raise ValueError(f"{tensor.name}: weights of type {tensor.type} are not supported")
    rows = tensor.data.reshape(-1, tensor.data.size * tensor.shape[-1] // max(1, int(np.prod(tensor.shape))))
    out = np.empty((len(rows), shape[-1]), dtype)
    step = max(1, _CHUNK_VALUES // tensor.shape[-1])
    for start in range(0, len(rows), step):
        values = quants.dequantize(rows[start : start + step], GGMLQuantizationType[tensor.type])
        out[start : start + step] = convert(values)
    return out.reshape(shape)
