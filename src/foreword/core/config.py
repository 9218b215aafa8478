"""Frozen settings, validated on creation."""

import math
from typing import Literal

from msgspec import Struct, field

from foreword.core.errors import InvalidRequestError
from foreword.core.types import ceil_div

KVDtype = Literal["f32", "f16", "int16", "int8"]
KV_DTYPE_BYTES: dict[KVDtype, int] = {"f32": 4, "f16": 2, "int16": 2, "int8": 1}
KV_SCALE_BYTES: dict[KVDtype, int] = {"f32": 0, "f16": 0, "int16": 4, "int8": 4}
"""What a head of one token takes beside its elements: an f32 that the codes of int16 and int8 are multiplied with."""
PrefixCacheKind = Literal["radix", "hash", "none"]
AdmissionOrder = Literal["arrival", "longest_hit"]
RetentionKind = Literal["slru", "lru", "lfu", "cost"]
ReuseGenerated = Literal["tenant", "off"]
"""Whether K and V of generated tokens may be found by later prompts of the same namespace, or only a prompt's own."""
SpeculationKind = Literal["off", "prompt_lookup"]
"""Whether several tokens of a sequence may be computed in one step, drafted from what it said before."""


def kv_head_bytes(kv_dtype: KVDtype, head_dim: int) -> int:
    """Bytes of K, or of V, that one head of one token takes."""
    return KV_DTYPE_BYTES[kv_dtype] * head_dim + KV_SCALE_BYTES[kv_dtype]


def check_pairs(field: str, size: int, kv_dtype: str) -> None:
    """See that codes have no half of a pair: keys lie by two dimensions of a token, values by two tokens.

    Raises:
        InvalidRequestError: the size is odd.
    """
    if size % 2:
        raise InvalidRequestError(
            field, f"an even number, since codes of {kv_dtype} lie in pairs (f16 and f32 take any)", size
        )


class RopeScaling(Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched. Names follow Hugging Face's `rope_scaling`."""

    kind: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None  # None: derived from `factor` as in the YaRN paper
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True  # YaRN: round the correction range to whole dimensions


class ModelConfig(Struct, frozen=True, kw_only=True):
    """Sizes and constants of a decoder-only transformer."""

    architecture: str  # "llama", "mistral", "qwen2", "qwen3"
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    attention_bias: bool = False  # biases on the q, k, v products
    output_bias: bool = False  # bias on the attention output product
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm on each head of q and k before RoPE (qwen3)
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
            "max_position",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
                raise InvalidRequestError(name, "an integer from 1 to 2147483647", value)
        if self.num_layers > 10_000:
            raise InvalidRequestError("num_layers", "at most 10000", self.num_layers)
        if self.num_heads % self.num_kv_heads:
            raise InvalidRequestError("num_kv_heads", f"a divisor of num_heads ({self.num_heads})", self.num_kv_heads)
        if self.head_dim % 2:
            raise InvalidRequestError("head_dim", "an even number, as rotary pairs need", self.head_dim)
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise InvalidRequestError(name, "a positive finite number", value)

    def kv_bytes_per_token(self, kv_dtype: KVDtype) -> int:
        """Bytes of K and V one token takes over all layers: 2 · layers · kv_heads · (bytes · head_dim + scale)."""
        return 2 * self.num_layers * self.num_kv_heads * kv_head_bytes(kv_dtype, self.head_dim)


class CacheConfig(Struct, frozen=True, kw_only=True):
    """The KV pool: how many blocks of how many tokens, and how prefixes are found again."""

    num_blocks: int
    block_size: int = 16
    kv_dtype: KVDtype = "int16"
    prefix_cache: PrefixCacheKind = "none"
    reuse_generated: ReuseGenerated = "tenant"
    retention: RetentionKind = "slru"  # which cached prefix goes first
    hint_share: float = 0.25  # most of the pool that priorities and lifetimes may keep
    pin_share: float = 0.25  # most of the pool that pins may hold
    tenant_share: float = 1.0  # most of the pool that one tenant's findable blocks may take
    debug: bool = False  # fill fresh and freed blocks with NaN, check every invariant after each step

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise InvalidRequestError("num_blocks", "at least 1", self.num_blocks)
        if not isinstance(self.block_size, int) or self.block_size not in (8, 16, 32, 64, 128):
            raise InvalidRequestError("block_size", "8, 16, 32, 64 or 128", self.block_size)
        if not isinstance(self.kv_dtype, str) or self.kv_dtype not in KV_DTYPE_BYTES:
            raise InvalidRequestError("kv_dtype", "f32, f16, int16 or int8", self.kv_dtype)
        if self.prefix_cache not in ("radix", "hash", "none"):
            raise InvalidRequestError("prefix_cache", "radix, hash or none", self.prefix_cache)
        if self.reuse_generated not in ("tenant", "off"):
            raise InvalidRequestError("reuse_generated", "tenant or off", self.reuse_generated)
        if self.retention not in ("slru", "lru", "lfu", "cost"):
            raise InvalidRequestError("retention", "slru, lru, lfu or cost", self.retention)
        for name in ("hint_share", "pin_share", "tenant_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InvalidRequestError(name, "a share from 0 to 1", getattr(self, name))

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens of one sequence."""
        return ceil_div(num_tokens, self.block_size)


class SchedulerConfig(Struct, frozen=True, kw_only=True):
    """Limits of a step."""

    max_num_seqs: int = 16
    token_budget: int = 512  # most tokens a step computes, over all sequences
    max_model_len: int = 2048  # most known tokens of one sequence, prompt and output together
    watermark: float = 0.01  # share of the pool kept free when a new request is admitted
    max_waiting: int = 4096  # bound of the waiting queue
    admission_order: AdmissionOrder = "longest_hit"  # among waiting requests of one tenant
    recompute_all: bool = False  # the naive loop (`--kv-cache off`): every step recomputes every known token
    speculation: SpeculationKind = "off"

    def __post_init__(self) -> None:
        for name, low in (("max_num_seqs", 1), ("token_budget", 1), ("max_model_len", 2), ("max_waiting", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InvalidRequestError(name, f"an integer of at least {low}", value)
        if self.admission_order not in ("arrival", "longest_hit"):
            raise InvalidRequestError("admission_order", "arrival or longest_hit", self.admission_order)
        if self.speculation not in ("off", "prompt_lookup"):
            raise InvalidRequestError("speculation", "off or prompt_lookup", self.speculation)
        if not 0.0 <= self.watermark < 0.5:
            raise InvalidRequestError("watermark", "a share from 0 to 0.5", self.watermark)
