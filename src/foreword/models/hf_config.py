"""`ModelConfig` from a `config.json`, with the defaults `transformers` gives to missing fields."""

from pathlib import Path
from typing import Any

from foreword.core.config import ModelConfig, RopeScaling
from foreword.core.errors import InvalidRequestError, ModelFormatError, shorten
from foreword.models.mapped_file import read_json_object

# Defaults of transformers' configuration classes; None stands for "as many as attention heads".
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "max_position_embeddings": 2048,
        "sliding_window": None,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
    },
}
_DEFAULTS["qwen3"] = {**_DEFAULTS["qwen2"], "head_dim": 128}
_RMS_NORM_EPS = 1e-6
_ROPE_THETA = 10_000.0
_REFUSED = {
    "auto_map": "asks for code from the model folder, which is never run",
    "quantization_config": "weights quantised this way are not supported; use GGUF, f32, f16 or bf16",
}


def read_hf_config(path: Path) -> tuple[ModelConfig, tuple[str, ...]]:
    """Sizes and constants from a `config.json`, and notes for the user.

    Raises:
        ModelNotFoundError: no such file.
        ModelFormatError: a field is of the wrong kind or out of range, or the model is of a kind not supported.
    """
    raw = read_json_object(path)
    for name, why in _REFUSED.items():
        if raw.get(name):
            raise ModelFormatError(path, name, why)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in _DEFAULTS:
        raise ModelFormatError(path, "model_type", f"expected one of {', '.join(_DEFAULTS)}, got {shorten(model_type)}")
    fields = _Fields(path, raw, _DEFAULTS[model_type])
    if fields.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelFormatError(path, "hidden_act", f"expected silu, got {shorten(raw['hidden_act'])}")
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    max_position = fields.integer("max_position_embeddings")
    scaling, rope_theta = _read_rope(fields, max_position)
    window = _active_window(fields, model_type)
    notes: tuple[str, ...] = ()
    if window is not None and window < max_position:
        max_position, notes = window, (f"context limited to its sliding window, {window} tokens",)
    has_bias = fields.flag("attention_bias") if model_type in ("llama", "qwen3") else False
    try:
        config = ModelConfig(
            architecture=model_type,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            num_layers=fields.integer("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", num_heads),
            head_dim=fields.integer("head_dim", hidden_size // max(1, num_heads)),
            intermediate_size=fields.integer("intermediate_size"),
            max_position=max_position,
            rms_norm_eps=fields.number("rms_norm_eps", _RMS_NORM_EPS),
            rope_theta=rope_theta,
            rope_scaling=scaling,
            attention_bias=has_bias or model_type == "qwen2",
            output_bias=has_bias,
            mlp_bias=fields.flag("mlp_bias") if model_type == "llama" else False,
            qk_norm=model_type == "qwen3",
            tied_embeddings=fields.flag("tie_word_embeddings"),
        )
    except InvalidRequestError as error:
        raise ModelFormatError(path, error.field, f"expected {error.expected}, got {shorten(error.got)}") from None
    return config, notes


def _active_window(fields: "_Fields", model_type: str) -> int | None:
    """The sliding window, where some layer uses it."""
    if model_type.startswith("qwen") and not fields.flag("use_sliding_window"):
        return None
    if model_type == "llama" or fields.get("sliding_window") is None:
        return None
    window = fields.integer("sliding_window")
    if window < 1:
        raise ModelFormatError(fields.path, "sliding_window", f"expected at least 1, got {window}")
    return window


def _read_rope(fields: "_Fields", max_position: int) -> tuple[RopeScaling, float]:
    """Rotary scaling and base, from either generation of field names."""
    raw = fields.raw
    nested = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(nested, dict):
        raise ModelFormatError(fields.path, "rope_scaling", f"expected an object, got {shorten(nested)}")
    rope = _Fields(fields.path, nested, {}, prefix="rope_scaling.")
    rope_theta = rope.number("rope_theta", fields.number("rope_theta", _ROPE_THETA))
    if rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0)) != 1:
        raise ModelFormatError(fields.path, "partial_rotary_factor", "rotating part of a head is not supported")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return RopeScaling(), rope_theta
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.positive("factor")), rope_theta
    original = fields.integer(
        "original_max_position_embeddings", rope.integer("original_max_position_embeddings", max_position)
    )
    if original < 1:
        raise ModelFormatError(fields.path, "original_max_position_embeddings", f"expected at least 1, got {original}")
    if kind == "llama3":
        return _llama3(rope, original), rope_theta
    if kind == "yarn":
        return _yarn(rope, original, max_position, rope_theta), rope_theta
    raise ModelFormatError(fields.path, "rope_scaling.rope_type", f"{shorten(kind)} is not supported")


def _llama3(rope: "_Fields", original: int) -> RopeScaling:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if not low < high:
        raise ModelFormatError(rope.path, "rope_scaling.high_freq_factor", f"expected more than {low}, got {high}")
    return RopeScaling(
        kind="llama3",
        factor=rope.positive("factor"),
        original_max_position=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(rope: "_Fields", original: int, max_position: int, rope_theta: float) -> RopeScaling:
    if rope_theta <= 1:
        raise ModelFormatError(rope.path, "rope_theta", f"expected more than 1 with yarn, got {rope_theta}")
    return RopeScaling(
        kind="yarn",
        factor=rope.positive("factor", max_position / original),
        original_max_position=original,
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        attention_factor=None if rope.get("attention_factor") is None else rope.positive("attention_factor"),
        mscale=None if not rope.get("mscale") else rope.positive("mscale"),
        mscale_all_dim=None if not rope.get("mscale_all_dim") else rope.positive("mscale_all_dim"),
        truncate=rope.flag("truncate", True),
    )


class _Fields:
    """Fields of an object, checked for kind; a null counts as missing."""

    def __init__(self, path: Path, raw: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> None:
        self.path = path
        self.raw = raw
        self._defaults = defaults
        self._prefix = prefix

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value; the default where it is missing."""
        return self.raw[name] if name in self.raw else self._defaults.get(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        value = default if value is None else value
        if type(value) is not int:
            raise self._error(name, "an integer", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        value = default if value is None else value
        # Not `isfinite`: a JSON integer may be too large for a double.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
            raise self._error(name, "a finite number", value)
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        value = self.number(name, default)
        if value <= 0:
            raise self._error(name, "a positive number", value)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        value = default if value is None else value
        if type(value) is not bool:
            raise self._error(name, "true or false", value)
        return value

    def _error(self, name: str, expected: str, value: Any) -> ModelFormatError:
        detail = "is missing" if value is None else f"expected {expected}, got {shorten(value)}"
        return ModelFormatError(self.path, self._prefix + name, detail)
