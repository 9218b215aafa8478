"""Weights from one GGML type to another, through the `gguf` library's own quantisers.

`gguf` is imported when first needed: it takes a tenth of a second, and a file of exactly packed types never needs it.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foreword.ops.backend import F32
from foreword.ops.ggml_types import GGML_TYPE_BY_NAME
from foreword.ops.raw_tensor import RawTensor

_T = TypeVar("_T", bound=np.generic)

_CHUNK_VALUES = 1 << 22  # values converted at once: 16 MB of f32, whatever the tensor's size
_FLOATS: dict[str, np.dtype[np.generic]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "F64": np.dtype("<f8")}
# Where a block's scales lie: first byte and number of bytes, f16 each. The rest are integers, always finite.
_SCALES = {"Q4_0": (0, 2), "Q4_1": (0, 4), "Q4_K": (0, 4), "Q8_0": (0, 2)}


def dequantise(tensor: RawTensor) -> F32:
    """Values of a tensor, f32, in its shape. F64 is rounded to f32, everything else is exact.

    Raises:
        ValueError: no values can be made of this type (integers, and GGML's formats of intermediate results).
    """
    return _convert(tensor, np.dtype(np.float32), tensor.shape[-1], lambda values: values).reshape(tensor.shape)


def requantise(tensor: RawTensor, type_name: str) -> RawTensor:
    """Express a tensor in another type: `F32`, `Q8_0` or `Q4_1`.

    Loss, as relative root mean square error on normally distributed weights: Q8_0 0.6 %, Q4_1 8 %.

    Raises:
        ValueError: no values can be made of the tensor's type, or its rows are no whole blocks of the new one.
    """
    if type_name == tensor.type:
        return tensor
    if type_name == "F32":
        return RawTensor(tensor.name, "F32", tensor.shape, dequantise(tensor).reshape(-1).view(np.uint8))
    row_bytes = GGML_TYPE_BY_NAME[type_name].row_bytes(tensor.shape[-1])
    if row_bytes is None:
        raise ValueError(f"rows of {tensor.shape[-1]} values are no whole blocks of {type_name}")
    from gguf import GGMLQuantizationType, quants

    wanted = GGMLQuantizationType[type_name]
    packed = _convert(tensor, np.dtype(np.uint8), row_bytes, lambda values: quants.quantize(values, wanted))
    return RawTensor(tensor.name, type_name, tensor.shape, packed.reshape(-1))


def is_finite(tensor: RawTensor) -> bool:
    """Whether no value is infinite or not a number, for types of `PACKED_EXACTLY`; looks at scales where there are."""
    if tensor.type == "BF16":
        return not np.any(tensor.data.view("<u2") & 0x7F80 == 0x7F80)
    if tensor.type == "F16":
        return not np.any(tensor.data.view("<u2") & 0x7C00 == 0x7C00)
    if tensor.type == "F32":
        values = tensor.data.view("<f4")
        with np.errstate(over="ignore", invalid="ignore"):
            # A sum needs no temporary. It is finite unless a value is not, or finite values overflow it.
            return bool(np.isfinite(values.sum()) or np.isfinite(values).all())
    start, length = _SCALES[tensor.type]
    blocks = tensor.data.reshape(-1, GGML_TYPE_BY_NAME[tensor.type].block_bytes)
    scales = np.ascontiguousarray(blocks[:, start : start + length]).view("<u2")
    return not np.any(scales & 0x7C00 == 0x7C00)


def _convert(tensor: RawTensor, dtype: np.dtype[_T], width: int, convert: Callable[[F32], NDArray[_T]]) -> NDArray[_T]:
    """`convert` of the values, a few rows at a time: `[rows, width]`."""
    values_of = _reader(tensor.type)
    cols = tensor.shape[-1]
    num_rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
    raw = tensor.data.reshape(num_rows, -1)
    out = np.empty((num_rows, width), dtype)
    step = max(1, _CHUNK_VALUES // cols)
    for start in range(0, num_rows, step):
        out[start : start + step] = convert(values_of(raw[start : start + step]))
    return out


def _reader(type_name: str) -> Callable[[NDArray[np.uint8]], F32]:
    """What turns rows of bytes into rows of f32."""
    if type_name in _FLOATS:
        return lambda raw: np.ascontiguousarray(raw).view(_FLOATS[type_name]).astype(np.float32)
    from gguf import GGMLQuantizationType, quants

    known = type_name in GGMLQuantizationType.__members__
    if not known or GGMLQuantizationType[type_name] not in quants._type_traits:
        raise ValueError(f"weights of type {type_name} are not supported")
    return lambda raw: quants.dequantize(raw, GGMLQuantizationType[type_name])
