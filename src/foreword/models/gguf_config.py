"""`ModelConfig` from a GGUF file's metadata."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from foreword.core.config import ModelConfig, RopeScaling
from foreword.core.errors import InvalidRequestError, ModelFormatError, shorten
from foreword.models.gguf_file import GGUFValue
from foreword.ops.raw_tensor import RawTensor

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
_SCALING_KINDS = ("none", "linear", "yarn")  # llama3 comes as frequency divisors, in the tensor `rope_freqs.weight`


def read_gguf_config(
    path: Path, metadata: Mapping[str, GGUFValue], tensors: Mapping[str, RawTensor]
) -> tuple[ModelConfig, tuple[str, ...]]:
    """Sizes and constants of the model in a GGUF file, and notes for the user.

    Raises:
        ModelFormatError: a key is missing, of the wrong kind or out of range, or the model is of a kind not supported.
    """
    keys = _Keys(path, metadata)
    if keys.integer("split.count", 1) > 1:
        raise ModelFormatError(path, "split.count", "is one part of several; join them with llama-gguf-split --merge")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFormatError(path, "token_embd.weight", "is missing or no matrix")
    if keys.integer("expert_count", 0):
        raise ModelFormatError(path, keys.name("expert_count"), "mixtures of experts are not supported")
    num_heads = keys.integer("attention.head_count")
    hidden_size = keys.integer("embedding_length")
    max_position = keys.integer("context_length")
    notes: tuple[str, ...] = ()
    window = keys.integer("attention.sliding_window", 0)
    if 0 < window < max_position:
        max_position, notes = window, (f"context limited to its sliding window, {window} tokens",)
    scaling = _rope_scaling(keys, keys.integer("context_length"))
    try:
        config = ModelConfig(
            architecture=keys.architecture,
            vocab_size=_vocab_size(keys, embedding),
            hidden_size=hidden_size,
            num_layers=keys.integer("block_count"),
            num_heads=num_heads,
            num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
            head_dim=_head_dim(keys, hidden_size // max(1, num_heads)),
            intermediate_size=keys.integer("feed_forward_length"),
            max_position=max_position,
            rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            rope_theta=keys.number("rope.freq_base", 10_000.0),
            rope_scaling=scaling,
            attention_bias=keys.architecture == "qwen2" or "blk.0.attn_q.bias" in tensors,
            output_bias="blk.0.attn_output.bias" in tensors,
            mlp_bias="blk.0.ffn_gate.bias" in tensors,
            qk_norm=keys.architecture == "qwen3",
            tied_embeddings="output.weight" not in tensors,
        )
    except InvalidRequestError as error:
        raise ModelFormatError(
            path, f"metadata: {error.field}", f"expected {error.expected}, got {shorten(error.got)}"
        ) from None
    return config, notes


def _head_dim(keys: "_Keys", default: int) -> int:
    """The one size of a head's query, key and value; all of it is rotated."""
    head_dim = keys.integer("attention.key_length", default)
    for name in ("attention.value_length", "rope.dimension_count"):
        found = keys.integer(name, head_dim)
        if found != head_dim:
            raise ModelFormatError(keys.path, keys.name(name), f"expected the head dimension, {head_dim}, got {found}")
    return head_dim


def _vocab_size(keys: "_Keys", embedding: RawTensor) -> int:
    rows = embedding.shape[0]
    tokens = keys.values.get("tokenizer.ggml.tokens")
    counts = {keys.name("vocab_size"): keys.integer("vocab_size", rows)}
    if isinstance(tokens, list):
        counts["tokenizer.ggml.tokens"] = len(tokens)
    for name, count in counts.items():
        if count != rows:
            raise ModelFormatError(keys.path, name, f"has {count} tokens, but token_embd.weight has {rows} rows")
    return rows


def _rope_scaling(keys: "_Keys", max_position: int) -> RopeScaling:
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind not in _SCALING_KINDS:
        raise ModelFormatError(keys.path, keys.name("rope.scaling.type"), f"{shorten(kind)} is not supported")
    if kind == "none" and "rope.scaling.type" not in keys and "rope.scale_linear" in keys:
        kind = "linear"
    if not factor > 0:
        raise ModelFormatError(keys.path, keys.name("rope.scaling.factor"), f"expected a positive number, got {factor}")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        extra = keys.number("rope.scaling.attn_factor", 1.0)
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=keys.integer("rope.scaling.original_context_length", max_position),
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            # GGUF's factor comes on top of the paper's.
            attention_factor=None if extra == 1 else extra * (0.1 * math.log(max(factor, 1.0)) + 1.0),
        )
    return RopeScaling()


class _Keys:
    """Metadata under `{architecture}.`, checked for kind."""

    def __init__(self, path: Path, values: Mapping[str, GGUFValue]) -> None:
        self.path = path
        self.values = values
        architecture = values.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            detail = f"expected one of {', '.join(ARCHITECTURES)}, got {shorten(architecture)}"
            raise ModelFormatError(path, "general.architecture", detail)
        self.architecture = architecture

    def __contains__(self, name: str) -> bool:
        return self.name(name) in self.values

    def name(self, name: str) -> str:
        return name if name.startswith("split.") else f"{self.architecture}.{name}"

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if isinstance(value, np.ndarray) and value.size and np.issubdtype(value.dtype, np.integer):
            if np.any(value != value[0]):
                raise ModelFormatError(self.path, self.name(name), "layers of different sizes are not supported")
            value = int(value[0])
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFormatError(self.path, self.name(name), f"expected an integer, got {shorten(value)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ModelFormatError(self.path, self.name(name), f"expected a finite number, got {shorten(value)}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise ModelFormatError(self.path, self.name(name), f"expected text, got {shorten(value)}")
        return value

    def _get(self, name: str, default: GGUFValue | None) -> GGUFValue:
        value = self.values.get(self.name(name), default)
        if value is None:
            raise ModelFormatError(self.path, self.name(name), "is missing")
        return value
