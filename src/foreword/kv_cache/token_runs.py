"""Comparing runs of packed tokens at the speed of memory, with no loop over tokens."""

import sys

from foreword.kv_cache.prefix_cache import TOKEN_BYTES

Packed = bytes | bytearray


def common_prefix(a: Packed, a_start: int, b: Packed, b_start: int, limit: int) -> int:
    """Equal leading tokens of `a[a_start:]` and `b[b_start:]`, at most `limit`; both must be as long as that.

    Cost: O(limit) bytes compared, in O(log limit) comparisons.
    """
    if _equal(a, a_start, b, b_start, 0, limit):
        return limit
    low, high = 0, limit  # the first `low` tokens are equal, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if _equal(a, a_start, b, b_start, low, middle):
            low = middle
        else:
            high = middle
    return low


def _equal(a: Packed, a_start: int, b: Packed, b_start: int, begin: int, end: int) -> bool:
    left = a[(a_start + begin) * TOKEN_BYTES : (a_start + end) * TOKEN_BYTES]
    return left == b[(b_start + begin) * TOKEN_BYTES : (b_start + end) * TOKEN_BYTES]


def token_at(packed: Packed, index: int) -> int:
    """The token id at `index`."""
    return int.from_bytes(packed[index * TOKEN_BYTES : (index + 1) * TOKEN_BYTES], sys.byteorder)
