"""Where K and V lie in one layer's arrays, by dtype.

    f32, f16   K `[N, J, D, B]` (transposed within a block), V `[N, J, B, D]`
    int8       K `[N, J, D + 4, B]`, V `[N, J, B, D + 4]`: for each block and head the codes, laid out as above, and
               behind them the B scales as f32, one a token; the shape counts the bytes of both

A stored value of int8 is `code * scale`. Codes and scales of a block are one run of bytes, so whoever copies blocks
need not know of scales.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreword.core.config import KV_SCALE_BYTES, KVDtype
from foreword.ops.backend import F32, KVArray

NUMPY_DTYPE: dict[KVDtype, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "int8": np.dtype(np.int8),
}
_NEVER_WRITTEN = -128  # a code that no value is rounded to
Shape = tuple[int, int, int, int]


class KVParts(NamedTuple):
    """Views of K, or of V: `values [N, J, B, D]`, and `scales [N, J, B]` where values are codes."""

    values: NDArray[Any]
    scales: F32 | None

    def poison(self, blocks: Any) -> None:
        """Fill blocks with what makes an output NaN when it is read."""
        if self.scales is None:
            self.values[blocks] = np.nan
        else:
            self.values[blocks] = _NEVER_WRITTEN
            self.scales[blocks] = np.nan


def array_shapes(
    num_blocks: int, num_kv_heads: int, head_dim: int, block_size: int, kv_dtype: KVDtype
) -> tuple[Shape, Shape]:
    """Shapes of one layer's K and V."""
    width = head_dim + KV_SCALE_BYTES[kv_dtype]
    return (num_blocks, num_kv_heads, width, block_size), (num_blocks, num_kv_heads, block_size, width)


def key_parts(k_cache: KVArray) -> KVParts:
    """Where the keys of an array lie, and their scales."""
    values, scales = _parts(k_cache, width_axis=2)
    return KVParts(values.swapaxes(2, 3), scales)


def value_parts(v_cache: KVArray) -> KVParts:
    """Where the values of an array lie, and their scales."""
    return _parts(v_cache, width_axis=3)


def _parts(array: KVArray, width_axis: int) -> KVParts:
    if array.dtype != NUMPY_DTYPE["int8"]:
        return KVParts(array, None)
    shape = list(array.shape)
    shape[width_axis] -= KV_SCALE_BYTES["int8"]
    heads = array.reshape(*shape[:2], -1)
    end = shape[2] * shape[3]
    return KVParts(heads[..., :end].reshape(shape), heads[..., end:].view(np.float32))
