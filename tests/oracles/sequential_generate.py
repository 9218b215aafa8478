"""The naive way to run a model: one sequence, one token at a time, over K and V of its own that lie in order.

No batching, no sharing, no scheduler: what the engine must equal, bit for bit, on the same backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreword.core.config import KVDtype, ModelConfig
from foreword.models.base import Model
from foreword.models.workspace import Workspace
from foreword.ops.backend import F32, AttentionBatch
from foreword.ops.kv_layout import NUMPY_DTYPE, array_shapes, key_parts, value_parts


class PrivateCaches:
    """K and V of one sequence: block i holds positions `[i * block_size, (i + 1) * block_size)`."""

    def __init__(
        self, config: ModelConfig, num_positions: int, *, block_size: int = 16, kv_dtype: KVDtype = "f32"
    ) -> None:
        self.block_size = block_size
        self.num_blocks = -(-num_positions // block_size)
        k_shape, v_shape = array_shapes(self.num_blocks, config.num_kv_heads, config.head_dim, block_size, kv_dtype)
        self._k = [np.empty(k_shape, NUMPY_DTYPE[kv_dtype]) for _ in range(config.num_layers)]
        self._v = [np.empty(v_shape, NUMPY_DTYPE[kv_dtype]) for _ in range(config.num_layers)]
        for k, v in zip(self._k, self._v, strict=True):  # any read of what was never written shows
            key_parts(k).poison(slice(None))
            value_parts(v).poison(slice(None))

    def k_cache(self, layer: int) -> NDArray[Any]:
        return self._k[layer]

    def v_cache(self, layer: int) -> NDArray[Any]:
        return self._v[layer]

    def batch(self, start: int, stop: int) -> AttentionBatch:
        """Positions `[start, stop)` of the one sequence."""
        positions = np.arange(start, stop, dtype=np.int32)
        return AttentionBatch(
            positions=positions,
            slot_mapping=positions,
            block_tables=np.arange(self.num_blocks, dtype=np.int32)[None, :],
            query_start_loc=np.array([0, stop - start], np.int32),
            context_lens=np.array([stop], np.int32),
        )


@dataclass(frozen=True)
class Generated:
    """What came out, and the logits each token was chosen from: `[num_tokens, vocab]`."""

    token_ids: list[int]
    logits: F32


def sequential_logits(
    model: Model, token_ids: Sequence[int], *, chunk: int = 1, block_size: int = 16, kv_dtype: KVDtype = "f32"
) -> F32:
    """Logits `[len(token_ids), vocab]` of every position, computed `chunk` tokens at a time."""
    caches = PrivateCaches(model.config, len(token_ids), block_size=block_size, kv_dtype=kv_dtype)
    workspace = Workspace(model.config, chunk)
    rows = []
    for start in range(0, len(token_ids), chunk):
        part = np.array(token_ids[start : start + chunk], np.int32)
        hidden = model.forward(part, caches.batch(start, start + len(part)), caches, workspace)
        rows.append(model.logits(hidden))
    return np.concatenate(rows)


def sequential_generate(
    model: Model, prompt: Sequence[int], num_tokens: int, *, block_size: int = 16, kv_dtype: KVDtype = "f32"
) -> Generated:
    """Continue `prompt` greedily by `num_tokens` tokens, whatever they are."""
    caches = PrivateCaches(model.config, len(prompt) + num_tokens, block_size=block_size, kv_dtype=kv_dtype)
    workspace = Workspace(model.config, 1)
    known, rows = list(prompt), []
    for position in range(len(prompt) + num_tokens - 1):
        token = np.array([known[position]], np.int32)
        hidden = model.forward(token, caches.batch(position, position + 1), caches, workspace)
        if position >= len(prompt) - 1:
            rows.append(model.logits(hidden)[0])
            known.append(int(np.argmax(rows[-1])))
    return Generated(known[len(prompt) :], np.stack(rows))
