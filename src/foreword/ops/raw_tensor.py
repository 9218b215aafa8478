"""A tensor as it lies in a model file."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

PACKED_EXACTLY = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q4_K", "Q8_0")
"""GGML types whose values `Backend.pack_matrix` keeps exactly."""


class RawTensor(Struct, frozen=True, eq=False):
    """Bytes of one tensor with their GGML type.

    Shapes   `shape` is in NumPy order, `[rows, cols]` for a matrix (outputs, inputs); `data` is `uint8`, one dimension.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class MatrixPart(Struct, frozen=True, eq=False):
    """One matrix of a fused product, e.g. q, k and v behind one another.

    `row_order`, where given, is `int32 [rows]`: output row i is the file's row `row_order[i]`.
    """

    tensor: RawTensor
    row_order: NDArray[np.int32] | None = None
