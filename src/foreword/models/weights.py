"""Tensors of a model's files, under one vocabulary, as packed matrices and vectors.

Names and layouts differ between GGUF and Hugging Face; from here on there is one of each. GGUF's llama files hold the
rows of q and k with rotary pairs side by side, `(2i, 2i + 1)`; `MatrixPart.row_order` puts them back to `(i, i + D/2)`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from foreword.core.errors import InvalidRequestError, ModelFormatError
from foreword.models.files import ModelFiles
from foreword.models.llama import LlamaWeights
from foreword.models.rope import RotaryTable
from foreword.ops.backend import F32, I32, Backend, LayerWeights, NotFiniteError, PackedMatrix
from foreword.ops.quantise import dequantise, requantise
from foreword.ops.raw_tensor import PACKED_EXACTLY, MatrixPart, RawTensor

WeightDtype = Literal["auto", "f32", "q8", "q4"]
"""`auto` keeps what the file holds, types that don't pack exactly becoming 8-bit. `f32` dequantises. `q8` and `q4`
re-quantise to GGML's Q8_0 and Q4_1; `q4` leaves 4-bit matrices alone and keeps the embedding and the head at 8 bits."""

_GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "rope_divisors": "rope_freqs.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "q": "blk.{}.attn_q.weight",
    "k": "blk.{}.attn_k.weight",
    "v": "blk.{}.attn_v.weight",
    "q_bias": "blk.{}.attn_q.bias",
    "k_bias": "blk.{}.attn_k.bias",
    "v_bias": "blk.{}.attn_v.bias",
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
    "output": "blk.{}.attn_output.weight",
    "output_bias": "blk.{}.attn_output.bias",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
    "gate_bias": "blk.{}.ffn_gate.bias",
    "up_bias": "blk.{}.ffn_up.bias",
    "down_bias": "blk.{}.ffn_down.bias",
}
_HF_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "rope_divisors": "",
    "attention_norm": "model.layers.{}.input_layernorm.weight",
    "q": "model.layers.{}.self_attn.q_proj.weight",
    "k": "model.layers.{}.self_attn.k_proj.weight",
    "v": "model.layers.{}.self_attn.v_proj.weight",
    "q_bias": "model.layers.{}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{}.self_attn.v_proj.bias",
    "q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{}.self_attn.k_norm.weight",
    "output": "model.layers.{}.self_attn.o_proj.weight",
    "output_bias": "model.layers.{}.self_attn.o_proj.bias",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
    "gate_bias": "model.layers.{}.mlp.gate_proj.bias",
    "up_bias": "model.layers.{}.mlp.up_proj.bias",
    "down_bias": "model.layers.{}.mlp.down_proj.bias",
}
_Packed = Sequence[PackedMatrix]
_Wanted = Callable[[_Packed], PackedMatrix]
_DERIVED = ".rotary_emb.inv_freq"  # old checkpoints store what the config says already


class PendingWeights:
    """All weights of a model of the llama family; most matrices are being packed from construction on.

    The files stay open until `finish`. Matrices of a type that has to be made are made and packed one by one, so that
    no two lie in memory twice.

    Raises:
        ModelFormatError: a tensor is missing, superfluous, of a shape unlike the config, of a type that can't be used,
            or holds a value that is no finite number.
        InvalidRequestError: no such `weight_dtype`.
    """

    def __init__(self, files: ModelFiles, backend: Backend, weight_dtype: WeightDtype) -> None:
        if weight_dtype not in get_args(WeightDtype):
            raise InvalidRequestError("weight_dtype", ", ".join(get_args(WeightDtype)), weight_dtype)
        reader = _WeightReader(files, backend, weight_dtype)
        config = files.config
        self._path = files.path
        self._embedding = reader.matrix("embedding", config.vocab_size, config.hidden_size)
        self._head = self._embedding
        if not config.tied_embeddings:
            self._head = reader.matrix("head", config.vocab_size, config.hidden_size)
        self._layers = [reader.layer(index) for index in range(config.num_layers)]
        self._final_norm = reader.vector("final_norm", config.hidden_size)
        self._rotary = reader.rotary()
        reader.check_nothing_is_left()
        self._packing = backend.begin_packing(reader.waiting)

    def finish(self) -> LlamaWeights:
        """The weights, all packed.

        Raises:
            ModelFormatError: a matrix holds a value that is no finite number.
        """
        try:
            packed = self._packing.matrices()
        except NotFiniteError as error:
            raise _not_finite(self._path, error.tensor) from None
        return LlamaWeights(
            embedding=self._embedding(packed),
            layers=[layer(packed) for layer in self._layers],
            final_norm=self._final_norm,
            head=self._head(packed),
            rotary=self._rotary,
        )


class _WeightReader:
    """Looks tensors up, checks them, and remembers which were used.

    Matrices stand for what they will be: `waiting` has the parts of those that are packed together at the end.
    """

    def __init__(self, files: ModelFiles, backend: Backend, weight_dtype: WeightDtype) -> None:
        self._path = files.path
        self._config = files.config
        self._backend = backend
        self._weight_dtype = weight_dtype
        self._names = _GGUF_NAMES if files.kind == "gguf" else _HF_NAMES
        self._tensors: Mapping[str, RawTensor] = files.tensors
        if files.kind == "safetensors" and "embed_tokens.weight" in files.tensors:  # saved without its head
            self._names = {part: name.removeprefix("model.") for part, name in _HF_NAMES.items()}
        self._used: set[str] = set()
        self.waiting: list[list[MatrixPart]] = []
        self._interleaved = files.kind == "gguf" and files.config.architecture in ("llama", "mistral")

    def layer(self, index: int) -> Callable[[_Packed], LayerWeights]:
        config = self._config
        hidden, middle, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        sizes = {name: count * head_dim for name, count in heads.items()}
        orders = {name: self._row_order(name, count) for name, count in heads.items()}
        mlp_sizes = {"gate": middle, "up": middle}
        qkv = self._fused(sizes, hidden, index, orders)
        output = self.matrix("output", hidden, sizes["q"], index)
        gate_up = self._fused(mlp_sizes, hidden, index, {})
        down = self.matrix("down", hidden, middle, index)
        rest = partial(
            LayerWeights,
            attention_norm=self.vector("attention_norm", hidden, index),
            qkv_bias=self._fused_bias(sizes, index, orders) if config.attention_bias else None,
            q_norm=self.vector("q_norm", head_dim, index) if config.qk_norm else None,
            k_norm=self.vector("k_norm", head_dim, index) if config.qk_norm else None,
            output_bias=self.vector("output_bias", hidden, index) if config.output_bias else None,
            mlp_norm=self.vector("mlp_norm", hidden, index),
            gate_up_bias=self._fused_bias(mlp_sizes, index, {}) if config.mlp_bias else None,
            down_bias=self.vector("down_bias", hidden, index) if config.mlp_bias else None,
        )
        return lambda packed: rest(qkv=qkv(packed), output=output(packed), gate_up=gate_up(packed), down=down(packed))

    def matrix(self, part: str, rows: int, cols: int, layer: int = -1) -> _Wanted:
        return self._pack([MatrixPart(self._matrix_tensor(part, rows, cols, layer))])

    def vector(self, part: str, size: int, layer: int = -1) -> F32:
        tensor = self._tensor(part, (size,), layer)
        try:
            values = dequantise(tensor)
        except ValueError as error:
            raise self._error(tensor.name, str(error)) from None
        if not np.isfinite(values).all():
            raise _not_finite(self._path, tensor.name)
        return values

    def rotary(self) -> RotaryTable:
        divisors = None
        if self._names["rope_divisors"] in self._tensors:
            divisors = self.vector("rope_divisors", self._config.head_dim // 2)
        try:
            return RotaryTable(self._config, divisors)
        except ValueError as error:
            raise ModelFormatError(self._path, "rotary position embedding", str(error)) from None

    def check_nothing_is_left(self) -> None:
        """A tensor nobody asked for means a model that is not quite what its config says."""
        tied_head = {self._names["head"]} if self._config.tied_embeddings else set()
        left = [name for name in self._tensors if name not in self._used | tied_head and not name.endswith(_DERIVED)]
        if left:
            more = f" ({len(left) - 1} more like it)" if len(left) > 1 else ""
            raise self._error(left[0], f"has no place in a {self._config.architecture} model of this config{more}")

    def _fused(self, sizes: Mapping[str, int], cols: int, layer: int, orders: Mapping[str, I32 | None]) -> _Wanted:
        return self._pack(
            [MatrixPart(self._matrix_tensor(part, rows, cols, layer), orders.get(part)) for part, rows in sizes.items()]
        )

    def _fused_bias(self, sizes: Mapping[str, int], layer: int, orders: Mapping[str, I32 | None]) -> F32:
        biases = []
        for part, size in sizes.items():
            bias, order = self.vector(f"{part}_bias", size, layer), orders.get(part)
            biases.append(bias if order is None else bias[order])
        return np.concatenate(biases)

    def _row_order(self, part: str, num_heads: int) -> I32 | None:
        """Where row `(head, half, i)` lies in a file that holds `(head, i, half)`; v is never rotated."""
        if part == "v" or not self._interleaved:
            return None
        head_dim = self._config.head_dim
        rows = np.arange(num_heads * head_dim, dtype=np.int32).reshape(num_heads, head_dim // 2, 2)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)

    def _matrix_tensor(self, part: str, rows: int, cols: int, layer: int) -> RawTensor:
        tensor = self._tensor(part, (rows, cols), layer)
        try:
            return requantise(tensor, self._stored_type(part, tensor.type))
        except ValueError as error:
            raise self._error(tensor.name, str(error)) from None

    def _stored_type(self, part: str, type_name: str) -> str:
        match self._weight_dtype:
            case "f32":
                return "F32"
            case "q8":
                return "Q8_0"
            case "q4" if part in ("embedding", "head"):
                return "Q8_0"
            case "q4":
                return type_name if type_name in ("Q4_0", "Q4_1", "Q4_K") else "Q4_1"
        if type_name in PACKED_EXACTLY:
            return type_name
        return "F32" if type_name == "F64" else "Q8_0"

    def _tensor(self, part: str, shape: tuple[int, ...], layer: int) -> RawTensor:
        name = self._names[part].format(layer)
        tensor = self._tensors.get(name)
        if tensor is None:
            raise self._error(name, "is missing")
        if tensor.shape != shape:
            raise self._error(name, f"expected shape {list(shape)}, got {list(tensor.shape)}")
        self._used.add(name)
        return tensor

    def _pack(self, parts: list[MatrixPart]) -> _Wanted:
        if all(self._tensors[part.tensor.name] is part.tensor for part in parts):
            self.waiting.append(parts)
            return itemgetter(len(self.waiting) - 1)
        try:
            (made,) = self._backend.begin_packing([parts]).matrices()
        except NotFiniteError as error:
            raise _not_finite(self._path, error.tensor) from None
        return lambda _: made

    def _error(self, name: str, detail: str) -> ModelFormatError:
        return ModelFormatError(self._path, f"tensor {name}", detail)


def _not_finite(path: Path, name: str) -> ModelFormatError:
    return ModelFormatError(path, f"tensor {name}", "holds a value that is not a finite number")
