"""How many values a JSON text holds, counted before it is decoded.

Decoding holds the interpreter, and with it the event loop, for as long as it makes objects: two million empty lists are
eight megabytes and a second. Counting is a few passes over the bytes, which NumPy makes without holding anybody up.
"""

import numpy as np
from numpy.typing import NDArray

from foreword.server.errors import ApiError
from foreword.server.limits import MAX_PARTS, MAX_VALUES

FEWEST_BYTES = MAX_PARTS
"""No shorter text can hold more than it may."""

_QUOTE, _BACKSLASH, _COMMA, _LIST, _OBJECT, _FIELD = b'"\\,[{:'


def check_values(text: bytes) -> None:
    """Refuse a text of more objects, lists and values than a request may have. Not JSON at all, it may pass.

    Raises:
        ApiError: 400.
    """
    codes = np.frombuffer(text, np.uint8)
    parts = np.flatnonzero((codes == _LIST) | (codes == _OBJECT) | (codes == _FIELD))
    commas = np.flatnonzero(codes == _COMMA)
    if len(parts) <= MAX_PARTS and len(parts) + len(commas) <= MAX_VALUES:
        return
    quotes = _quotes(codes)
    num_parts = _outside(parts, quotes)
    if num_parts > MAX_PARTS:
        found = f"{num_parts} lists, objects and fields; at most {MAX_PARTS} are accepted"
        raise ApiError(400, f"the body holds {found}")
    num_values = num_parts + _outside(commas, quotes)
    if num_values > MAX_VALUES:
        raise ApiError(400, f"the body holds {num_values} values; at most {MAX_VALUES} are accepted")


def _outside(places: NDArray[np.int64], quotes: NDArray[np.int64]) -> int:
    """How many places are in no string."""
    return int(np.count_nonzero(np.searchsorted(quotes, places) % 2 == 0))


def _quotes(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where strings begin and end: quotes that an even number of backslashes stands before."""
    quotes = np.flatnonzero(codes == _QUOTE)
    slashes = np.flatnonzero(codes == _BACKSLASH)
    if not len(slashes):
        return quotes
    begins = np.concatenate(([True], np.diff(slashes) != 1))
    first = np.maximum.accumulate(np.where(begins, slashes, 0))  # of each backslash's run
    last = np.searchsorted(slashes, quotes) - 1  # the backslash before each quote, if it stands right before it
    follows = (last >= 0) & (slashes[last] == quotes - 1)
    is_escaped = follows & ((quotes - first[last]) % 2 == 1)
    return np.delete(quotes, np.flatnonzero(is_escaped))
