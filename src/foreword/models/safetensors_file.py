"""Safetensors files and sharded folders of them, read without trust.

Layout: `8 bytes: length of the header, little endian | header, JSON: name -> dtype, shape, data_offsets | data`. As the
format demands, tensors neither overlap nor leave holes, and the data end with the file.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from foreword.core.errors import ModelFormatError, shorten
from foreword.models.mapped_file import MAX_JSON_BYTES, MappedFile, parse_json_object, read_json_object
from foreword.ops.raw_tensor import RawTensor

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_DIMENSIONS = 8
DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")


class SafetensorsFile:
    """One file: `tensors` by name, views of the mapped file; `RawTensor.type` is the file's dtype, e.g. `BF16`.

    Raises:
        ModelNotFoundError: no such file.
        ModelFormatError: the file contradicts the format or itself; names the file and the field.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            self.tensors: Mapping[str, RawTensor] = _read_tensors(path, self._file.data)
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


class SafetensorsFolder:
    """A folder's weights: one file, or the shards its index names; `tensors` by name, over all shards.

    Raises:
        ModelNotFoundError: the folder holds no weights.
        ModelFormatError: a shard is malformed, outside the folder, or unlike the index.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.tensors: dict[str, RawTensor] = {}
        self._files: list[SafetensorsFile] = []
        try:
            if (folder / INDEX_NAME).exists():
                self._open_shards(folder)
            else:
                self._files.append(SafetensorsFile(_single_file(folder)))
                self.tensors.update(self._files[0].tensors)
        except BaseException:
            self.close()
            raise

    @property
    def weight_paths(self) -> list[Path]:
        """Files that hold the weights, in order of name."""
        return [file.path for file in self._files]

    def close(self) -> None:
        """Let go of all files."""
        self.tensors = {}
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_shards(self, folder: Path) -> None:
        index_path = folder / INDEX_NAME
        weight_map = _read_weight_map(index_path)
        for name in sorted(set(weight_map.values())):
            file = SafetensorsFile(_shard_path(folder, name, index_path))
            self._files.append(file)
            for tensor_name, tensor in file.tensors.items():
                if weight_map.get(tensor_name) != name:
                    detail = f"{name} holds it, the index says {shorten(weight_map.get(tensor_name))}"
                    raise ModelFormatError(index_path, f"weight_map[{shorten(tensor_name)}]", detail)
                self.tensors[tensor_name] = tensor
        for tensor_name, name in weight_map.items():
            if tensor_name not in self.tensors:
                raise ModelFormatError(index_path, f"weight_map[{shorten(tensor_name)}]", f"{name} does not hold it")


def _single_file(folder: Path) -> Path:
    named = folder / SINGLE_NAME
    if named.exists():
        return named
    found = sorted(folder.glob("*.safetensors"))
    if len(found) > 1:
        raise ModelFormatError(folder, INDEX_NAME, f"is missing, but there are {len(found)} safetensors files")
    return found[0] if found else named  # opening it then says that it is not there


def _read_weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFormatError(path, "weight_map", f"expected tensor names and files, got {shorten(weight_map)}")
    for tensor_name, name in weight_map.items():
        if not isinstance(name, str) or not _SHARD_NAME.fullmatch(name):
            detail = f"expected the name of a safetensors file in this folder, got {shorten(name)}"
            raise ModelFormatError(path, f"weight_map[{shorten(tensor_name)}]", detail)
    return weight_map


def _shard_path(folder: Path, name: str, index_path: Path) -> Path:
    """Where a shard lies; a link may lead nowhere but into the folder or the blobs of the same Hugging Face cache."""
    path, home = folder / name, folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if path.is_symlink() and path.resolve().parent not in allowed:
        raise ModelFormatError(index_path, f"shard {name}", "is a link that leads out of the folder")
    return path


def _read_tensors(path: Path, data: NDArray[np.uint8]) -> dict[str, RawTensor]:
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    limit = min(len(data) - 8, MAX_JSON_BYTES)
    if len(data) < 8 or not 2 <= header_bytes <= limit:
        raise ModelFormatError(path, "header length", f"expected 2 to {max(limit, 2)} bytes, got {header_bytes}")
    header = parse_json_object(data[8 : 8 + header_bytes].tobytes(), path, "header")
    body = data[8 + header_bytes :]
    tensors: dict[str, RawTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, start, stop = _check_entry(path, name, entry)
        if stop > len(body):
            detail = f"data end at {stop}, but the file holds {len(body)} bytes of data"
            raise ModelFormatError(path, f"tensor {shorten(name)}", detail)
        spans.append((start, stop, name))
        tensors[name] = RawTensor(name, dtype, shape, body[start:stop])
    _check_no_overlap_no_hole(path, sorted(spans), len(body))
    return tensors


def _check_entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    field = f"tensor {shorten(name)}"
    if not isinstance(entry, dict):
        raise ModelFormatError(path, field, f"expected dtype, shape and data_offsets, got {shorten(entry)}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ModelFormatError(path, field, f"unknown dtype {shorten(dtype)}")
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ModelFormatError(path, field, f"expected a shape of at most {MAX_DIMENSIONS} sizes, got {shorten(shape)}")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFormatError(path, field, f"expected data_offsets of begin and end, got {shorten(offsets)}")
    num_bytes = prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != num_bytes:
        detail = f"{dtype} {shorten(shape)} takes {num_bytes} bytes, data_offsets say {offsets[1] - offsets[0]}"
        raise ModelFormatError(path, field, detail)
    return dtype, tuple(shape), offsets[0], offsets[1]


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    # Sizes over 64 bits are refused before they are multiplied or printed.
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def _check_no_overlap_no_hole(path: Path, spans: list[tuple[int, int, str]], num_bytes: int) -> None:
    edges = [(0, 0, ""), *spans, (num_bytes, num_bytes, "")]
    for (_, stop, name), (start, _, next_name) in pairwise(edges):
        if start < stop:
            raise ModelFormatError(path, f"tensor {shorten(next_name)}", f"overlaps tensor {shorten(name)}")
        if start > stop:
            raise ModelFormatError(path, "data", f"{start - stop} bytes at {stop} belong to no tensor")
