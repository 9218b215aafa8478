"""Where K and V lie in one layer's arrays, by dtype.

    f32, f16   K `[N, J, D, B]` (transposed within a block), V `[N, J, B, D]`
    int8       K `[N, J, D + 4, B]`, V `[N, J, B, D + 4]`
    int16      K `[N, J, D + 2, B]`, V `[N, J, B, D + 2]`

Of int8 and int16 each block and head holds codes, and behind them the B scales as f32, one a token; the shape counts
both in codes. What is stored of a value is `code * scale`. Codes lie in pairs that one instruction multiplies and adds:
K `[D / 2, B, 2]`, two dimensions of a token, and V `[B / 2, D, 2]`, two tokens of a dimension. Codes and scales of a
block are one run of bytes, so whoever copies blocks need not know of them.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreword.core.config import KV_SCALE_BYTES, KVDtype, check_pairs
from foreword.ops.backend import F32, I32, KVArray

NUMPY_DTYPE: dict[KVDtype, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
}
Shape = tuple[int, int, int, int]


class KVParts(NamedTuple):
    """Views of K, or of V.

    Shapes   `elements [N, J, B * D]`; `places [B, D]`, where the dimensions of a token lie among those of its block and
             head; `scales [N, J, B]` where the elements are codes.
    """

    elements: NDArray[Any]
    places: NDArray[np.intp]
    scales: F32 | None

    def read(self, block: int, offset: int) -> NDArray[Any]:
        """A token's elements `[J, D]`: a copy."""
        elements: NDArray[Any] = self.elements[block][:, self.places[offset]]
        return elements

    def write(self, block: int, offset: int, elements: Any) -> None:
        """Set a token's elements to what broadcasts to `[J, D]`."""
        self.elements[block][:, self.places[offset]] = elements

    def floats(self) -> F32:
        """What is stored of every token, `[N, J, B, D]`: a copy."""
        values: F32 = self.elements[..., self.places].astype(np.float32)
        return values if self.scales is None else values * self.scales[..., None]

    def poison(self, blocks: Any) -> None:
        """Fill blocks with what makes an output NaN when it is read."""
        if self.scales is None:
            self.elements[blocks] = np.nan
        else:
            self.elements[blocks] = np.iinfo(self.elements.dtype).min  # no value is rounded to it
            self.scales[blocks] = np.nan


def array_shapes(
    num_blocks: int, num_kv_heads: int, head_dim: int, block_size: int, kv_dtype: KVDtype
) -> tuple[Shape, Shape]:
    """Shapes of one layer's K and V.

    Raises:
        InvalidRequestError: codes are to be stored, and head dimension or block size is odd.
    """
    if KV_SCALE_BYTES[kv_dtype]:
        check_pairs("head_dim", head_dim, kv_dtype)
        check_pairs("block_size", block_size, kv_dtype)
    width = head_dim + KV_SCALE_BYTES[kv_dtype] // NUMPY_DTYPE[kv_dtype].itemsize
    return (num_blocks, num_kv_heads, width, block_size), (num_blocks, num_kv_heads, block_size, width)


def key_parts(k_cache: KVArray) -> KVParts:
    """Where the keys of an array lie, and their scales."""
    return _parts(k_cache, is_key=True)


def value_parts(v_cache: KVArray) -> KVParts:
    """Where the values of an array lie, and their scales."""
    return _parts(v_cache, is_key=False)


def copy_blocks(k_cache: KVArray, v_cache: KVArray, sources: I32, destinations: I32) -> None:
    """Copy whole blocks of one layer, in order: a later copy reads what an earlier one wrote.

    A step copies a block or a few, of some kilobytes each: less than waking a thread for it costs.
    """
    for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
        k_cache[destination] = k_cache[source]
        v_cache[destination] = v_cache[source]


def _parts(array: KVArray, *, is_key: bool) -> KVParts:
    width, block_size = array.shape[2:] if is_key else array.shape[:1:-1]
    heads = array.reshape(*array.shape[:2], -1)
    stores_codes = np.issubdtype(array.dtype, np.integer)
    head_dim = width - KV_SCALE_BYTES["int8"] // array.itemsize if stores_codes else width
    offset, d = np.ogrid[:block_size, :head_dim]
    if not stores_codes:
        return KVParts(heads, d * block_size + offset if is_key else offset * head_dim + d, None)
    pairs = (d // 2 * block_size + offset) * 2 + d % 2 if is_key else (offset // 2 * head_dim + d) * 2 + offset % 2
    end = head_dim * block_size
    return KVParts(heads[..., :end], pairs, heads[..., end:].view(np.float32))
