"""Files of a model, read without trust: regular files only, sizes bounded, nothing executed."""

import contextlib
import json
import mmap
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from foreword.core.errors import ModelFormatError, ModelNotFoundError, shorten

MAX_JSON_BYTES = 16 << 20  # an index of 100,000 tensors takes about 10 MB; parsing this much takes a third of a second


class MappedFile:
    """A file mapped read-only; `data` is `uint8 [size]`.

    Views of `data` stay valid after `close()`: the mapping goes when the last of them does.

    Raises:
        ModelNotFoundError: no such file.
        ModelFormatError: not a regular file, empty, or unreadable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open_regular(path) as file:
            self.size = os.fstat(file.fileno()).st_size
            if self.size == 0:
                raise ModelFormatError(path, "file", "is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.data: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Let go of the mapping."""
        self.data = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # someone still reads a view; the mapping goes with it
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_json_object(path: Path) -> dict[str, Any]:
    """Read the JSON object a file holds.

    Raises:
        ModelNotFoundError: no such file.
        ModelFormatError: over 16 MiB, not JSON, not an object, nested too deep, or with a key twice.
    """
    with _open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_JSON_BYTES:
            raise ModelFormatError(path, "file", f"expected at most {MAX_JSON_BYTES} bytes, got {size}")
        return parse_json_object(file.read(), path, "file")


def parse_json_object(text: bytes, path: Path, field: str) -> dict[str, Any]:
    """Parse `text` as a JSON object; `path` and `field` name it in errors."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(path, field, f"is not valid JSON: {_one_line(error)}") from None
    if not isinstance(value, dict):
        raise ModelFormatError(path, field, f"expected a JSON object, got {shorten(value)}")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {shorten(twice)} appears twice")
    return value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _open_regular(path: Path) -> Any:
    """Open for reading; a fifo or device would block or never end, so only regular files are opened."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ModelFormatError(path, "file", "is not a regular file")
        return open(path, "rb")
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ModelFormatError):
            raise
        raise ModelFormatError(path, "file", f"cannot be read: {_one_line(error)}") from None
