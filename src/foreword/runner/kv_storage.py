"""K and V of every block: one allocation each per layer, reserved at once and touched on demand."""

import contextlib
import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from foreword.core.config import CacheConfig, ModelConfig
from foreword.core.errors import CapacityError, InvariantError
from foreword.core.outputs import BlockCopy
from foreword.core.types import BlockId
from foreword.ops.backend import Backend, KVArray
from foreword.ops.kv_layout import NUMPY_DTYPE, array_shapes, key_parts, value_parts


class KVStorage:
    """The pool's memory.

    Shapes   per layer, K is `[num_blocks, num_kv_heads, head_dim, block_size]` (transposed within a block, as the
             attention kernel reads it) and V `[num_blocks, num_kv_heads, block_size, head_dim]`; for int16 and int8,
             whose blocks hold codes and their scales, `ops/kv_layout.py` says more.

    Raises:
        CapacityError: the system will not reserve that much address space.
    """

    def __init__(self, model: ModelConfig, cache: CacheConfig) -> None:
        self.num_bytes = pool_bytes(model, cache)
        k_shape, v_shape = array_shapes(
            cache.num_blocks, model.num_kv_heads, model.head_dim, cache.block_size, cache.kv_dtype
        )
        dtype = NUMPY_DTYPE[cache.kv_dtype]
        try:
            self._k = [_reserve(k_shape, dtype) for _ in range(model.num_layers)]
            self._v = [_reserve(v_shape, dtype) for _ in range(model.num_layers)]
        except (OSError, OverflowError, MemoryError):
            raise CapacityError(f"the KV pool of {self.num_bytes:,} bytes does not fit in memory") from None
        self._debug = cache.debug

    def k_cache(self, layer: int) -> KVArray:
        """K of one layer."""
        return self._k[layer]

    def v_cache(self, layer: int) -> KVArray:
        """V of one layer."""
        return self._v[layer]

    def prepare(self, backend: Backend, fresh_blocks: Sequence[BlockId], copies: Sequence[BlockCopy]) -> None:
        """Do what a step asks before its forward pass: in debug mode poison fresh blocks, then copy blocks."""
        if self._debug and fresh_blocks:
            self.poison(fresh_blocks)
        if not copies:
            return
        sources = np.array([c.source for c in copies], np.int32)
        destinations = np.array([c.destination for c in copies], np.int32)
        for blocks in (sources, destinations):
            if not 0 <= blocks.min() <= blocks.max() < len(self._k[0]):  # NumPy would take -1 for the last
                raise InvariantError(f"copies of blocks {blocks.min()} to {blocks.max()} of {len(self._k[0])}")
        for k, v in zip(self._k, self._v, strict=True):
            backend.copy_blocks(k, v, sources, destinations)

    def poison(self, blocks: Sequence[BlockId]) -> None:
        """Fill blocks with NaN, so that reading what was never written shows in the output."""
        index = np.asarray(blocks, np.intp)
        for k, v in zip(self._k, self._v, strict=True):
            key_parts(k).poison(index)
            value_parts(v).poison(index)


def _reserve(shape: tuple[int, ...], dtype: np.dtype[Any]) -> KVArray:
    """Address space whose pages cost memory once they are first written.

    Huge pages are declined: with two arrays a layer, rounding each up to 2 MiB would take a good part of a small pool
    again.
    """
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without huge pages has nothing to decline
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def pool_bytes(model: ModelConfig, cache: CacheConfig) -> int:
    """Bytes of the whole pool: those of a token, times blocks · block size."""
    return model.kv_bytes_per_token(cache.kv_dtype) * cache.num_blocks * cache.block_size


def block_bytes(model: ModelConfig, cache: CacheConfig) -> int:
    """Bytes of one block over all layers."""
    return model.kv_bytes_per_token(cache.kv_dtype) * cache.block_size
