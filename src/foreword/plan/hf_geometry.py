"""Geometry from a `config.json` of any of the usual families, by its fields alone.

More families than the engine runs: planning needs no forward pass. Each quantity goes by one of a few names; what a
family leaves out is filled in as `transformers` fills it in.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from foreword.core.errors import InvalidRequestError, ModelFormatError, shorten
from foreword.models.mapped_file import read_json_object
from foreword.plan.geometry import Geometry, LayerKV
from foreword.plan.parameters import count_parameters

MAX_LAYERS = 10_000
_MAX_SIZE = 2**31 - 1

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_HEAD_DIM = ("head_dim", "kv_channels")


class _Family(Struct, frozen=True):
    """What a family's configuration leaves unsaid."""

    window: int | None = None  # where layers slide and no width is given
    pattern: int | None = None  # every n-th layer sees everything, the others slide
    kv_heads: int | None = None
    head_dim: int | None = None


_FAMILIES: dict[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(kv_heads=8),
    "mixtral": _Family(kv_heads=8),
    "qwen2": _Family(),
    "qwen2_moe": _Family(),
    "qwen3": _Family(head_dim=128),
    "qwen3_moe": _Family(head_dim=128),
    "gemma": _Family(kv_heads=16, head_dim=256),
    "gemma2": _Family(window=4096, pattern=2, kv_heads=4, head_dim=256),
    "gemma3": _Family(window=4096, pattern=6, kv_heads=4, head_dim=256),
    "gemma3_text": _Family(window=4096, pattern=6, kv_heads=4, head_dim=256),
    "gpt_oss": _Family(window=128, pattern=2, kv_heads=8, head_dim=64),
    "cohere": _Family(),
    "cohere2": _Family(window=4096, pattern=4),
    "phi": _Family(),
    "phi3": _Family(),
    "olmo2": _Family(),
    "granite": _Family(),
    "smollm3": _Family(kv_heads=4),
    "stablelm": _Family(),
    "starcoder2": _Family(kv_heads=2),
    "gpt2": _Family(),
    "gptj": _Family(),
    "gpt_neox": _Family(),
    "gpt_bigcode": _Family(),
    "opt": _Family(),
    "bloom": _Family(),
    "falcon": _Family(),
    "mpt": _Family(),
    "dbrx": _Family(),
    "chatglm": _Family(),
    "deepseek_v2": _Family(),
    "deepseek_v3": _Family(),
}
_WHOLE = ("full_attention", "attention", "global_attention")
_SLIDING = ("sliding_attention", "local_attention")
_CHUNKED = ("chunked_attention",)


def read_hf_geometry(path: Path) -> Geometry:
    """The geometry that a `config.json` describes.

    Raises:
        ModelNotFoundError: no such file.
        ModelFormatError: a field is missing, of the wrong kind or out of range, or the model keeps no K and V as a
            decoder does.
    """
    raw = read_json_object(path)
    text = raw.get("text_config")
    if isinstance(text, dict):  # a model that sees or hears: its language part is what keeps K and V of tokens
        raw = {**text, "model_type": text.get("model_type", raw.get("model_type"))}
    fields = _Fields(path, raw)
    if raw.get("is_encoder_decoder"):
        raise ModelFormatError(path, "is_encoder_decoder", "models with an encoder are not planned")
    family = _FAMILIES.get(fields.model_type)
    notes: tuple[str, ...] = ()
    if family is None:
        notes = (f"model_type {shorten(fields.model_type)} is not known: read by the usual names",)
        family = _Family()
    try:
        return _geometry(fields, family, notes)
    except InvalidRequestError as error:
        raise ModelFormatError(path, error.field, f"expected {error.expected}, got {shorten(error.got)}") from None


def _geometry(fields: "_Fields", family: _Family, notes: tuple[str, ...]) -> Geometry:
    heads = fields.integer(_HEADS)
    count = fields.integer(_LAYERS, most=MAX_LAYERS)
    is_latent = fields.has("kv_lora_rank")
    if is_latent:
        rotated = fields.integer(("qk_rope_head_dim",))
        head_dim, value_dim = fields.integer(("qk_nope_head_dim",)) + rotated, fields.integer(("v_head_dim",))
        kv_heads, k, v = heads, fields.integer(("kv_lora_rank",)) + rotated, 0
    else:
        head_dim = value_dim = _head_dim(fields, family, heads)
        kv_heads = _kv_heads(fields, family, heads)
        k = v = kv_heads * head_dim
    windows, stateful = _windows(fields, family, count)
    if stateful:
        notes += (f"{stateful} of {count} layers keep a state of fixed size, not K and V: left out",)
    return Geometry(
        name=str(fields.model_type),
        layers=tuple(LayerKV(k=k, v=v, heads=1 if is_latent else kv_heads, window=window) for window in windows),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        is_latent=is_latent,
        max_position=fields.optional(_POSITIONS),
        num_parameters=count_parameters(
            fields.model_type,
            fields.optional,
            (count, heads, kv_heads, head_dim),
            tied=fields.flag("tie_word_embeddings") if fields.has("tie_word_embeddings") else None,
        ),
        notes=notes,
    )


def _head_dim(fields: "_Fields", family: _Family, heads: int) -> int:
    given = fields.optional(_HEAD_DIM)
    if given is not None:
        return given
    return family.head_dim or max(1, fields.integer(_HIDDEN) // heads)


def _kv_heads(fields: "_Fields", family: _Family, heads: int) -> int:
    nested = fields.raw.get("attn_config")
    if isinstance(nested, dict) and "kv_n_heads" in nested:  # mpt, dbrx
        return _Fields(fields.path, nested).integer(("kv_n_heads",), most=heads)
    if fields.model_type == "falcon" and not fields.flag("new_decoder_architecture"):
        return 1 if fields.flag("multi_query", default=True) else heads
    if fields.model_type == "gpt_bigcode":
        return 1 if fields.flag("multi_query", default=True) else heads
    if fields.model_type == "chatglm" and not fields.flag("multi_query_attention"):
        return heads
    given = fields.optional(_KV_HEADS)
    return min(heads, family.kv_heads or heads) if given is None else given


def _windows(fields: "_Fields", family: _Family, count: int) -> tuple[list[int | None], int]:
    """The window of each layer that keeps K and V, and how many layers keep something else."""
    kinds = fields.raw.get("layer_types")
    if kinds is not None:
        return _windows_by_kind(fields, family, count, kinds)
    pattern = fields.optional(("sliding_window_pattern", "_sliding_window_pattern")) or family.pattern
    window = fields.optional(("sliding_window",))
    if pattern is not None:
        width = window or family.window
        return [None if (layer + 1) % pattern == 0 else width for layer in range(count)], 0
    if fields.model_type.startswith("qwen"):
        if window is None or not fields.flag("use_sliding_window"):
            return [None] * count, 0
        first = fields.optional(("max_window_layers",), least=0)
        return [window if layer >= (28 if first is None else first) else None for layer in range(count)], 0
    return [window] * count, 0


def _windows_by_kind(fields: "_Fields", family: _Family, count: int, kinds: object) -> tuple[list[int | None], int]:
    if not isinstance(kinds, list) or len(kinds) != count:
        raise fields.error("layer_types", f"a list of {count} names", kinds)
    windows: list[int | None] = []
    for kind in kinds:
        if kind in _WHOLE:
            windows.append(None)
        elif kind in _SLIDING:
            windows.append(fields.optional(("sliding_window",)) or family.window or fields.integer(("sliding_window",)))
        elif kind in _CHUNKED:
            windows.append(fields.integer(("attention_chunk_size",)))
        elif not isinstance(kind, str):
            raise fields.error("layer_types", "names of layers", kind)
    return windows, count - len(windows)


class _Fields:
    """Fields of a configuration under any of several names, checked for kind and range; a null counts as missing."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self.path = path
        self.raw = raw
        kind = raw.get("model_type", "")
        if not isinstance(kind, str):
            raise self.error("model_type", "text", kind)
        self.model_type = kind

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def optional(self, names: Sequence[str], *, least: int = 1, most: int = _MAX_SIZE) -> int | None:
        """The first of these that is there."""
        for name in names:
            value = self.raw.get(name)
            if value is None:
                continue
            if type(value) is not int or not least <= value <= most:
                raise self.error(name, f"an integer from {least} to {most}", value)
            return value
        return None

    def integer(self, names: Sequence[str], *, most: int = _MAX_SIZE) -> int:
        value = self.optional(names, most=most)
        if value is None:
            raise ModelFormatError(self.path, names[0], "is missing")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.error(name, "true or false", value)
        return value

    def error(self, name: str, expected: str, value: object) -> ModelFormatError:
        return ModelFormatError(self.path, name, f"expected {expected}, got {shorten(value)}")
