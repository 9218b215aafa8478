"""GGUF files (versions 2 and 3, little endian), read without trust.

Layout: `magic, version, tensor count, key count | keys and values | tensor names, shapes, types, offsets | padding |
tensor data`. Every count, length and offset comes from the file, so each is checked against the file's size, in
Python's unbounded integers, before anything is sized by it. Reading is linear in the header and copies no tensor.
"""

import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from foreword.core.errors import ModelFormatError, shorten
from foreword.models.mapped_file import MappedFile
from foreword.ops.cpu import string_starts
from foreword.ops.ggml_types import GGML_TYPE_BY_CODE, GGMLType
from foreword.ops.raw_tensor import RawTensor

GGUFValue = bool | int | float | str | list[str] | NDArray[np.generic]
"""Scalars, strings, lists of strings; arrays of numbers and of booleans as NumPy arrays."""

DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
MAX_KEYS = 1 << 16  # real files have under 200
MAX_TENSORS = 1 << 16  # real files have under 20,000
MAX_STRINGS = 1 << 22  # in all arrays together; the largest vocabularies with merges have under 1 million
MAX_NAME_BYTES = 1 << 16  # the format's own limit for keys

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALAR_DTYPES = {
    code: np.dtype(text)
    for code, text in enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "u1", "", "", "<u8", "<i8", "<f8"))
    if text
}


class GGUFFile:
    """A GGUF file: `metadata` by key, `tensors` by name, in the file's order.

    Tensor data are views of the mapped file and stay valid after `close()`. Arrays of strings are decoded when first
    asked for.

    Raises:
        ModelNotFoundError: no such file.
        ModelFormatError: the file contradicts the format or itself; names the file and the field.
    Cost     O(bytes before the tensor data).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            header = _HeaderReader(path, self._file.data)
            num_tensors, num_keys = header.read_counts()
            self.metadata: Mapping[str, GGUFValue] = header.read_metadata(num_keys)
            infos = [header.read_tensor_info() for _ in range(num_tensors)]
            alignment = _alignment(path, self.metadata)
            data_start = -(-header.position // alignment) * alignment
            self.tensors: Mapping[str, RawTensor] = _locate_tensors(path, self._file.data, infos, data_start, alignment)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Let go of the file; the mapping goes with the last view of a tensor."""
        self.tensors = {}
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _StringArray:
    """Strings whose lengths have been checked: at each of `starts`, 8 bytes of length, then that many of UTF-8."""

    def __init__(self, encoded: bytes, starts: NDArray[np.int64]) -> None:
        self._encoded = encoded
        self._starts = starts

    def decode(self, path: Path, key: str) -> list[str]:
        """All strings at once: lengths are cut out, all but one byte of each, which becomes a separator.

        Seven times as fast as one by one, which matters to start-up: a vocabulary with merges has 100,000 of them.
        """
        starts = self._starts
        if not len(starts):
            return []
        text = np.frombuffer(self._encoded, np.uint8).copy()
        keep = np.ones(len(text), np.bool_)
        for byte in range(7):
            keep[starts + byte] = False
        text[starts + 7] = 0
        joined = text[keep].tobytes()
        if joined.count(b"\0") != len(starts):  # some string holds the separator itself
            return self._decode_one_by_one(path, key)
        try:
            return joined[1:].decode().split("\0")
        except UnicodeDecodeError as error:
            index = joined.count(b"\0", 1, error.start + 1)
            raise ModelFormatError(path, key, f"string {index} is not UTF-8") from None

    def _decode_one_by_one(self, path: Path, key: str) -> list[str]:
        strings = []
        for start, stop in pairwise([*self._starts.tolist(), len(self._encoded)]):
            try:
                strings.append(self._encoded[start + 8 : stop].decode())
            except UnicodeDecodeError:
                raise ModelFormatError(path, key, f"string {len(strings)} is not UTF-8") from None
        return strings


class _Metadata(Mapping[str, GGUFValue]):
    """Values by key; arrays of strings wait as byte ranges until someone wants them."""

    def __init__(self, path: Path, values: dict[str, GGUFValue | _StringArray]) -> None:
        self._path = path
        self._values = values

    def __getitem__(self, key: str) -> GGUFValue:
        value = self._values[key]
        if isinstance(value, _StringArray):
            value = self._values[key] = value.decode(self._path, key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _TensorInfo:
    """What the header says of one tensor, not yet checked against the file's size."""

    __slots__ = ("name", "offset", "shape", "type")

    def __init__(self, name: str, shape: tuple[int, ...], kind: GGMLType, offset: int) -> None:
        self.name, self.shape, self.type, self.offset = name, shape, kind, offset


class _HeaderReader:
    """A position in the mapped bytes that never moves past their end."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self._path = path
        self._bytes = data
        self._data = data.data
        self._end = len(data)
        self._strings_left = MAX_STRINGS
        self.position = 0

    def read_counts(self) -> tuple[int, int]:
        if bytes(self._take(4, "magic")) != b"GGUF":
            raise self._error("magic", "is not GGUF")
        version = self._uint(4, "version")
        if version not in (2, 3):
            hint = ", as in a big-endian file" if version & 0xFFFF == 0 else ""
            raise self._error("version", f"expected 2 or 3, got {version}{hint}")
        num_tensors = self._uint(8, "tensor_count")
        num_keys = self._uint(8, "metadata_kv_count")
        # A key takes at least 13 bytes and a tensor 33, so a count that cannot fit is refused before it is looped over.
        self._check_count("metadata_kv_count", num_keys, 13, MAX_KEYS)
        self._check_count("tensor_count", num_tensors, 33, MAX_TENSORS)
        return num_tensors, num_keys

    def read_metadata(self, num_keys: int) -> _Metadata:
        values: dict[str, GGUFValue | _StringArray] = {}
        for index in range(num_keys):
            key = self._string(f"metadata key {index}", MAX_NAME_BYTES)
            if key in values:
                raise self._error(shorten(key), "appears twice")
            values[key] = self._value(key, self._uint(4, f"type of {shorten(key)}"))
        return _Metadata(self._path, values)

    def read_tensor_info(self) -> _TensorInfo:
        name = self._string("tensor name", MAX_NAME_BYTES)
        field = f"tensor {shorten(name)}"
        num_dimensions = self._uint(4, field)
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._error(field, f"expected 1 to {MAX_DIMENSIONS} dimensions, got {num_dimensions}")
        sizes = struct.unpack(f"<{num_dimensions}Q", self._take(8 * num_dimensions, field))
        if 0 in sizes:
            raise self._error(field, f"has a dimension of size 0: {sizes}")
        code = self._uint(4, field)
        kind = GGML_TYPE_BY_CODE.get(code)
        if kind is None:
            raise self._error(field, f"unknown tensor type {code}")
        return _TensorInfo(name, sizes[::-1], kind, self._uint(8, field))

    def _value(self, key: str, code: int) -> GGUFValue | _StringArray:
        if code == _STRING:
            return self._string(key, self._end)
        if code == _ARRAY:
            return self._array(key)
        if code not in _SCALAR_DTYPES:
            raise self._error(shorten(key), f"unknown value type {code}")
        value = self._numbers(key, code, 1)[0]
        return bool(value) if code == _BOOL else value.item()

    def _array(self, key: str) -> GGUFValue | _StringArray:
        code = self._uint(4, key)
        count = self._uint(8, key)
        if code == _STRING:
            return self._string_array(key, count)
        if code == _ARRAY:
            raise self._error(shorten(key), "arrays of arrays are not supported")
        if code not in _SCALAR_DTYPES:
            raise self._error(shorten(key), f"unknown element type {code}")
        return self._numbers(key, code, count)

    def _numbers(self, key: str, code: int, count: int) -> NDArray[np.generic]:
        dtype = _SCALAR_DTYPES[code]
        values = np.frombuffer(bytes(self._take(count * dtype.itemsize, key)), dtype)
        if code == _BOOL:
            if np.any(values > 1):
                raise self._error(shorten(key), "holds a boolean that is neither 0 nor 1")
            return values.astype(np.bool_)
        return values

    def _string_array(self, key: str, count: int) -> _StringArray:
        self._check_count(shorten(key), count, 8, self._strings_left)
        self._strings_left -= count
        start = self.position
        found = string_starts(self._bytes, start, count)
        if len(found) <= count:
            raise self._cut_off(key, start, found.tolist(), count)
        self.position = start + int(found[-1])
        return _StringArray(bytes(self._data[start : self.position]), found[:-1])

    def _cut_off(self, key: str, start: int, starts: list[int], count: int) -> ModelFormatError:
        """The error for strings of which the last read ends, or the next one starts, past the end of the file."""
        last = len(starts) - 1
        if starts and start + starts[last] + 8 + self._length_at(start + starts[last]) > self._end:
            return self._error(shorten(key), f"string {last} of {count} ends past the end of the file")
        return self._error(shorten(key), f"string {last + 1} of {count} starts past the end of the file")

    def _length_at(self, position: int) -> int:
        return int.from_bytes(self._data[position : position + 8], "little")

    def _string(self, field: str, limit: int) -> str:
        length = self._uint(8, field)
        if length > limit:
            raise self._error(shorten(field), f"expected at most {limit} bytes of text, got {length}")
        try:
            return str(self._take(length, field), "utf-8")
        except UnicodeDecodeError:
            raise self._error(shorten(field), "is not UTF-8") from None

    def _uint(self, num_bytes: int, field: str) -> int:
        return int.from_bytes(self._take(num_bytes, field), "little")

    def _take(self, num_bytes: int, field: str) -> memoryview:
        start, stop = self.position, self.position + num_bytes
        if stop > self._end:
            raise self._error(shorten(field), f"needs {num_bytes} bytes at {start}, but the file ends at {self._end}")
        self.position = stop
        return self._data[start:stop]

    def _check_count(self, field: str, count: int, least_bytes: int, limit: int) -> None:
        fits = (self._end - self.position) // least_bytes
        if count > min(fits, limit):
            raise self._error(field, f"expected at most {min(fits, limit)}, got {count}")

    def _error(self, field: str, detail: str) -> ModelFormatError:
        return ModelFormatError(self._path, field, detail)


def _alignment(path: Path, metadata: Mapping[str, GGUFValue]) -> int:
    key = "general.alignment"
    value = metadata.get(key, DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise ModelFormatError(path, key, f"expected a power of two from 8 to {MAX_ALIGNMENT}, got {shorten(value)}")
    return value


def _locate_tensors(
    path: Path, data: NDArray[np.uint8], infos: list[_TensorInfo], data_start: int, alignment: int
) -> dict[str, RawTensor]:
    tensors: dict[str, RawTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for info in infos:
        field = f"tensor {shorten(info.name)}"
        if info.name in tensors:
            raise ModelFormatError(path, field, "appears twice")
        if info.offset % alignment:
            raise ModelFormatError(path, field, f"offset {info.offset} is not a multiple of {alignment}")
        row_bytes = info.type.row_bytes(info.shape[-1])
        if row_bytes is None:
            detail = f"rows of {info.shape[-1]} values are no whole blocks of {info.type.block_size} ({info.type.name})"
            raise ModelFormatError(path, field, detail)
        num_bytes = row_bytes
        for size in info.shape[:-1]:
            num_bytes *= size
        start = data_start + info.offset
        if start + num_bytes > len(data):
            detail = f"needs {num_bytes} bytes at {start}, but the file ends at {len(data)}"
            raise ModelFormatError(path, field, detail)
        spans.append((start, start + num_bytes, info.name))
        tensors[info.name] = RawTensor(info.name, info.type.name, info.shape, data[start : start + num_bytes])
    spans.sort()
    for (_, stop, name), (start, _, next_name) in pairwise(spans):
        if start < stop:
            raise ModelFormatError(path, f"tensor {shorten(next_name)}", f"overlaps tensor {shorten(name)}")
    return tensors
