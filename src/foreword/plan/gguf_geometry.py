"""Geometry from a GGUF file's metadata, of any architecture that follows the format's names."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from foreword.core.errors import InvalidRequestError, ModelFormatError, shorten
from foreword.models.gguf_file import GGUFFile, GGUFValue
from foreword.plan.geometry import Geometry, LayerKV

_PATTERNS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}  # every n-th layer sees everything
_WHOLE = ("llama", "qwen2", "qwen3")  # a width these files may carry is not used by their layers
_MAX_SIZE = 2**31 - 1


def read_gguf_geometry(path: Path) -> Geometry:
    """The geometry of the model in a GGUF file, with the exact bytes of its tensors.

    Raises:
        ModelNotFoundError: no such file.
        ModelFormatError: a key is missing, of the wrong kind or out of range.
    """
    with GGUFFile(path) as file:
        weight_bytes = sum(tensor.data.nbytes for tensor in file.tensors.values())
        keys = _Keys(path, file.metadata)
        count = keys.integer("block_count", most=10_000)
        heads = max(keys.per_layer("attention.head_count", count), default=1)
        try:
            return _geometry(path, keys, count, heads, weight_bytes)
        except InvalidRequestError as error:
            detail = f"expected {error.expected}, got {shorten(error.got)}"
            raise ModelFormatError(path, f"metadata: {error.field}", detail) from None


def _geometry(path: Path, keys: "_Keys", count: int, heads: int, weight_bytes: int) -> Geometry:
    default = max(1, keys.integer("embedding_length") // max(1, heads))
    key = keys.integer("attention.key_length", default)
    value = keys.integer("attention.value_length", key)
    latent = keys.integer("attention.kv_lora_rank", 0)
    notes: tuple[str, ...] = ()
    windows = _windows(keys, count)
    if latent:
        rotated = keys.integer("rope.dimension_count")
        kv_heads = [heads] * count
        sizes = [(latent + rotated, 0, 1)] * count
        # Newer files give the sizes of a head's own key and value beside those of the latent vector.
        key, value = keys.integer("attention.key_length_mla", key), keys.integer("attention.value_length_mla", value)
    else:
        kv_heads = keys.per_layer("attention.head_count_kv", count, heads)
        sizes = [(each * key, each * value, each) for each in kv_heads]
        if 0 in kv_heads:
            notes = (f"{kv_heads.count(0)} of {count} layers keep no K and V: left out",)
    kept = [LayerKV(k=k, v=v, heads=h, window=w) for (k, v, h), w in zip(sizes, windows, strict=True) if k + v]
    return Geometry(
        name=path.stem,
        layers=tuple(kept),
        num_heads=heads,
        num_kv_heads=max(kv_heads, default=1),
        head_dim=key,
        value_dim=value,
        is_latent=latent > 0,
        max_position=keys.integer("context_length"),
        weight_bytes=weight_bytes,
        notes=notes,
    )


def _windows(keys: "_Keys", count: int) -> list[int | None]:
    window = keys.integer("attention.sliding_window", 0)
    if not window or keys.architecture in _WHOLE:
        return [None] * count
    pattern = _PATTERNS.get(keys.architecture)
    return [None if pattern and (layer + 1) % pattern == 0 else window for layer in range(count)]


class _Keys:
    """Metadata under `{architecture}.`, checked for kind and range."""

    def __init__(self, path: Path, values: Mapping[str, GGUFValue]) -> None:
        self._path = path
        self._values = values
        architecture = values.get("general.architecture")
        if not isinstance(architecture, str):
            raise ModelFormatError(path, "general.architecture", f"expected text, got {shorten(architecture)}")
        self.architecture = architecture

    def integer(self, name: str, default: int | None = None, *, most: int = _MAX_SIZE) -> int:
        value = self._values.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise ModelFormatError(self._path, f"{self.architecture}.{name}", "is missing")
        return self._checked(name, value, most)

    def per_layer(self, name: str, count: int, default: int | None = None) -> list[int]:
        """One number for all layers, or one a layer."""
        value = self._values.get(f"{self.architecture}.{name}", default)
        if not isinstance(value, np.ndarray):
            return [self.integer(name, default)] * count
        if len(value) != count:
            raise ModelFormatError(
                self._path, f"{self.architecture}.{name}", f"expected {count} numbers, got {len(value)}"
            )
        return [self._checked(name, each, _MAX_SIZE) for each in value.tolist()]

    def _checked(self, name: str, value: object, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            detail = f"expected an integer from 0 to {most}, got {shorten(value)}"
            raise ModelFormatError(self._path, f"{self.architecture}.{name}", detail)
        return value
