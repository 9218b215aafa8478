"""Tiny models with random weights, made with NumPy alone, as any kind of model file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import quantize
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from foreword.core.config import ModelConfig, RopeScaling
from foreword.models.base import Model
from foreword.models.registry import WeightDtype, load_model
from foreword.ops.backend import Backend

Weights = dict[str, NDArray[np.float32]]
"""By Hugging Face's names."""


def tiny_config(architecture: str = "llama", **changes: Any) -> ModelConfig:
    """Sizes of a tiny model: GQA of 4 over 2 heads of 16, 2 layers, 256 tokens, 512 positions."""
    config = ModelConfig(
        architecture=architecture,
        vocab_size=256,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        max_position=512,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        attention_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )
    return replace(config, **changes)


def tiny_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Random weights of a size that keeps activations near one and logits well apart."""
    rng = np.random.default_rng(seed)
    hidden, head_dim, middle = config.hidden_size, config.head_dim, config.intermediate_size
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def matrix(rows: int, cols: int) -> NDArray[np.float32]:
        return np.asarray(rng.standard_normal((rows, cols)) / np.sqrt(cols), np.float32)

    def vector(size: int, centre: float) -> NDArray[np.float32]:
        return np.asarray(centre + 0.1 * rng.standard_normal(size), np.float32)

    weights: Weights = {"model.embed_tokens.weight": matrix(config.vocab_size, hidden)}
    for index in range(config.num_layers):
        shapes = {
            "self_attn.q_proj": (q_size, hidden, config.attention_bias),
            "self_attn.k_proj": (kv_size, hidden, config.attention_bias),
            "self_attn.v_proj": (kv_size, hidden, config.attention_bias),
            "self_attn.o_proj": (hidden, q_size, config.output_bias),
            "mlp.gate_proj": (middle, hidden, config.mlp_bias),
            "mlp.up_proj": (middle, hidden, config.mlp_bias),
            "mlp.down_proj": (hidden, middle, config.mlp_bias),
        }
        prefix = f"model.layers.{index}."
        for name, (rows, cols, has_bias) in shapes.items():
            sharpness = 1.5 if name.endswith(("q_proj", "k_proj")) else 1  # so that attention is no mere average
            weights[f"{prefix}{name}.weight"] = np.float32(sharpness) * matrix(rows, cols)
            if has_bias:
                weights[f"{prefix}{name}.bias"] = vector(rows, 0.0)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = vector(hidden, 1.0)
        if config.qk_norm:
            weights[f"{prefix}self_attn.q_norm.weight"] = vector(head_dim, 1.0)
            weights[f"{prefix}self_attn.k_norm.weight"] = vector(head_dim, 1.0)
    weights["model.norm.weight"] = vector(hidden, 1.0)
    if not config.tied_embeddings:
        weights["lm_head.weight"] = 2 * matrix(config.vocab_size, hidden)
    return weights


def tiny_model_files(
    folder: Path, *, kind: str = "safetensors", seed: int = 0, matrix_type: str = "F32", **changes: Any
) -> Path:
    """Write a tiny model below `folder`; returns what `load_model` takes. `changes` are those of `tiny_config`."""
    config = tiny_config(**changes)
    weights = tiny_weights(config, seed)
    if kind == "gguf":
        return write_gguf(folder / "model.gguf", config, weights, matrix_type=matrix_type)
    return write_safetensors_folder(folder / "model", config, weights, dtype=matrix_type)


def tiny_model(
    folder: Path, backend: Backend, *, weight_dtype: WeightDtype = "auto", kind: str = "safetensors", **changes: Any
) -> Model:
    """A loaded tiny model; arguments as of `tiny_model_files`."""
    return load_model(tiny_model_files(folder, kind=kind, **changes), backend, weight_dtype=weight_dtype)


def write_safetensors_folder(
    folder: Path, config: ModelConfig, weights: Weights, *, dtype: str = "F32", num_shards: int = 1
) -> Path:
    """Write `config.json` and weights as `F32`, `F16` or `BF16`, in one file or in shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(config)))
    encoded = {name: (dtype, value.shape, encode(value, dtype)) for name, value in weights.items()}
    if num_shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(encoded))
        return folder
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {key: encoded[key] for key in list(encoded)[shard::num_shards]}
        (folder / name).write_bytes(safetensors_bytes(part))
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def safetensors_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A safetensors file of tensors given as dtype, shape and data."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def encode(values: NDArray[np.float32], dtype: str) -> bytes:
    """Bytes of values as `F32`, `F16` or `BF16`."""
    return quantize(np.ascontiguousarray(values), GGMLQuantizationType[dtype]).tobytes()


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """A `config.json` for a config."""
    fields = {
        "model_type": config.architecture,
        "architectures": ["ForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied_embeddings,
        "sliding_window": None,
        "rope_scaling": None,
    }
    scaling = config.rope_scaling
    named = {
        **asdict(scaling),
        "rope_type": scaling.kind,
        "original_max_position_embeddings": scaling.original_max_position,
    }
    if scaling.kind != "none":
        kept = ("rope_type", "factor", *_SCALING_FIELDS[scaling.kind])
        fields["rope_scaling"] = {name: named[name] for name in kept if named[name] is not None}
    return fields


_SCALING_FIELDS: dict[str, tuple[str, ...]] = {
    "linear": (),
    "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: Weights,
    *,
    matrix_type: str = "F32",
    metadata: Mapping[str, str] | None = None,
    rope_divisors: NDArray[np.float32] | None = None,
) -> Path:
    """Write a GGUF file with the `gguf` library; matrices in `matrix_type`, a type the library can quantise to."""
    writer = GGUFWriter(path, config.architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    _add_rope_scaling(writer, config.rope_scaling)
    for key, text in (metadata or {}).items():
        writer.add_string(key, text)
    for name, values in weights.items():
        kind = GGMLQuantizationType[matrix_type if values.ndim == 2 else "F32"]
        writer.add_tensor(gguf_name(name), quantize(_interleaved(config, name, values), kind), raw_dtype=kind)
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """GGUF's name of a Hugging Face tensor."""
    for old, new in _GGUF_NAME_PARTS.items():
        name = name.replace(old, new)
    return name


_GGUF_NAME_PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _interleaved(config: ModelConfig, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of q and k in the order llama.cpp's converter gives them: rotary pairs side by side."""
    if config.architecture not in ("llama", "mistral") or not any(part in name for part in ("q_proj", "k_proj")):
        return np.ascontiguousarray(values)
    rest = values.shape[1:]
    halves = values.reshape(-1, 2, config.head_dim // 2, *rest)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(-1, *rest)


def _add_rope_scaling(writer: GGUFWriter, scaling: RopeScaling) -> None:
    if scaling.kind in ("none", "llama3"):
        return
    writer.add_rope_scaling_type(RopeScalingType[scaling.kind.upper()])
    writer.add_rope_scaling_factor(scaling.factor)
    if scaling.kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position)
        writer.add_rope_scaling_yarn_beta_fast(scaling.beta_fast)
        writer.add_rope_scaling_yarn_beta_slow(scaling.beta_slow)
