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
        self.hidden: F32 = np.empty((max_tokens, config.hidden_size), np.float32)
        self.last_hidden: F32 = np.empty_like(self.hidden)
        self.qkv: F32 = np.empty((max_tokens, attention_size + 2 * config.num_kv_heads * config.head_dim), np.float32)
        self.attention: F32 = np.empty((max_tokens, attention_size), np.float32)
        self.last_attention: F32 = np.empty_like(self.attention)
        self.gate_up: F32 = np.empty((max_tokens, 2 * config.intermediate_size), np.float32)

    @property
    def num_bytes(self) -> int:
        """Address space of all buffers."""
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))
