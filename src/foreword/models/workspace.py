"""Buffers of one step, allocated once."""

import numpy as np

from foreword.core.config import ModelConfig
from foreword.core.errors import CapacityError
from foreword.ops.backend import F32


class Workspace:
    """Activations of up to `max_tokens` tokens; layers reuse them in turn.

    Shapes   f32: `hidden`, `last_hidden` `[max_tokens, hidden]`, `qkv` `[max_tokens, (H + 2J) * D]`,
             `attention`, `last_attention` `[max_tokens, H * D]`, `gate_up` `[max_tokens, 2 * intermediate]`.
             The `last_` ones hold only the rows that need logits. Memory is touched as far as steps use it.
    Overlap  `gate_up` lies where `qkv` and `attention` do: a layer's attention is over before its feed-forward begins.

    Raises:
        CapacityError: the system will not reserve that much address space.
    """

    def __init__(self, config: ModelConfig, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        try:
            self._allocate(config, max_tokens)
        except (MemoryError, OverflowError, ValueError):  # ValueError: more than an array can index
            raise CapacityError(f"token_budget: the buffers of {max_tokens:,} tokens do not fit in memory") from None

    def _allocate(self, config: ModelConfig, max_tokens: int) -> None:
        attention_size = config.num_heads * config.head_dim
        qkv_size = attention_size + 2 * config.num_kv_heads * config.head_dim
        gate_up_size = 2 * config.intermediate_size
        self.hidden: F32 = np.empty((max_tokens, config.hidden_size), np.float32)
        self.last_hidden: F32 = np.empty_like(self.hidden)
        self.last_attention: F32 = np.empty((max_tokens, attention_size), np.float32)
        self._shared: F32 = np.empty(max_tokens * max(qkv_size + attention_size, gate_up_size), np.float32)
        qkv, attention = np.split(self._shared[: max_tokens * (qkv_size + attention_size)], [max_tokens * qkv_size])
        self.qkv: F32 = qkv.reshape(max_tokens, qkv_size)
        self.attention: F32 = attention.reshape(max_tokens, attention_size)
        self.gate_up: F32 = self._shared[: max_tokens * gate_up_size].reshape(max_tokens, gate_up_size)

    @property
    def num_bytes(self) -> int:
        """Address space of all buffers."""
        return sum(held.nbytes for held in (self.hidden, self.last_hidden, self.last_attention, self._shared))
