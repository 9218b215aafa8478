"""Other files for the row `files`: the same model in other types, and a 7B-class shape with random weights."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape
from numpy.typing import NDArray

from benchmarks.peers.setup import SetupError, run
from foreword.models.files import open_model_files
from foreword.models.gguf_file import GGUFFile

PULLED = "as pulled"
F32 = "F32"
OTHER_TYPES = ("Q8_0", "Q4_0", "Q4_K_M", F32)
RANDOM_7B = "7B Q4_0"
_TYPE = GGMLQuantizationType.Q4_0  # blocks of a scale in f16, then 16 bytes of nibbles
_STEP = 0.004  # scale of every random block: weights of about the usual spread, so that sums stay finite


@dataclass(frozen=True, slots=True)
class Shape:
    """What a llama model's tensors follow from."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocabulary: int
    context: int = 4096


SMALL_VOCABULARY = 32000  # no file knows fewer tokens
LLAMA_2_7B = Shape(layers=32, hidden=4096, ffn=11008, heads=32, vocabulary=SMALL_VOCABULARY)


def make(folder: Path, model: Path, quantizer: Path | None, tell: Callable[[str], None]) -> dict[str, Path]:
    """Every file of the row, by what it is; those already in `folder` are kept.

    `quantizer` is llama.cpp's `llama-quantize`; without it no other types are made.

    Raises:
        SetupError: a file can't be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {PULLED: model}
    for kind in OTHER_TYPES:
        path = folder / f"{model.name.removesuffix('.gguf')}.to.{kind}.gguf"
        if not path.exists():
            if quantizer is None:
                continue
            tell(f"making {path.name}")
            unfinished = path.with_suffix(".part")
            command = [str(quantizer), "--allow-requantize", *_pure(kind), str(model), str(unfinished), kind]
            run(command, folder / "quantize.log")
            unfinished.rename(path)
        found[kind] = path
    path = folder / "random-7B.Q4_0.gguf"
    if not path.exists():
        tell(f"making {path.name}, 3.8 GB")
        write_random(path, LLAMA_2_7B, model)
    return found | {RANDOM_7B: path}


def bytes_a_token(model: Path) -> int:
    """Bytes of the weights that a decode step reads: all, but of an embedding with no part in the head one row."""
    with open_model_files(model) as files:
        sizes = {name: tensor.data.nbytes for name, tensor in files.tensors.items()}
    if "output.weight" in sizes:
        del sizes["token_embd.weight"]
    return sum(sizes.values())


def write_random(path: Path, shape: Shape, tokenizer_of: Path) -> None:
    """A llama of `shape` with Q4_0 weights from a fixed seed; its tokenizer is another file's, cut to size or padded.

    Written tensor by tensor, so that memory holds no more than one.

    Raises:
        SetupError: no room, or `tokenizer_of` has no vocabulary.
    """
    unfinished = path.with_suffix(".part")
    try:
        writer = GGUFWriter(unfinished, "llama")
        _write_settings(writer, shape)
        _write_vocabulary(writer, shape.vocabulary, tokenizer_of)
        for name, sizes in _tensors(shape):
            packed, dtype, type_ = _stored(sizes)
            writer.add_tensor_info(name, packed, dtype, math.prod(packed) * dtype.itemsize, type_)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        random = np.random.default_rng(7)
        for _, sizes in _tensors(shape):
            writer.write_tensor_data(_values(sizes, random))
        writer.close()
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise SetupError(f"{path.name}: {os.strerror(error.errno or 0)}") from None
    unfinished.rename(path)


def _pure(kind: str) -> list[str]:
    """Q4_0 with a head of 8 bits, like the file as it is pulled; the others as their names mean them."""
    return ["--token-embedding-type", "q8_0"] if kind == "Q4_0" else []


def _write_settings(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(shape.vocabulary)


def _write_vocabulary(writer: GGUFWriter, size: int, source: Path) -> None:
    with GGUFFile(source) as file:
        metadata: Mapping[str, object] = {
            key: value for key, value in file.metadata.items() if key.startswith("tokenizer.ggml.")
        }
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(merges, list) or not isinstance(types, np.ndarray):
        raise SetupError(f"{source.name}: no BPE vocabulary to borrow")
    kept = tokens[:size] + [f"<unused{index}>" for index in range(size - len(tokens))]
    known = set(kept)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(str(metadata.get("tokenizer.ggml.pre", "default")))
    writer.add_token_list(kept)
    writer.add_token_types([*types[:size].tolist(), *[5] * (size - len(tokens))])
    writer.add_token_merges([merge for merge in merges if _is_known(merge, known)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _is_known(merge: str, known: set[str]) -> bool:
    left, _, right = merge.partition(" ")
    return {left, right, left + right} <= known


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and `(outputs, inputs)` in the order of the file."""
    square = (shape.hidden, shape.hidden)
    yield "token_embd.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        yield f"blk.{layer}.attn_norm.weight", (shape.hidden,)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{part}.weight", square
        yield f"blk.{layer}.ffn_norm.weight", (shape.hidden,)
        yield f"blk.{layer}.ffn_gate.weight", (shape.ffn, shape.hidden)
        yield f"blk.{layer}.ffn_up.weight", (shape.ffn, shape.hidden)
        yield f"blk.{layer}.ffn_down.weight", (shape.hidden, shape.ffn)
    yield "output_norm.weight", (shape.hidden,)
    yield "output.weight", (shape.vocabulary, shape.hidden)


def _stored(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype[np.generic], GGMLQuantizationType | None]:
    """The shape in the file, in bytes for packed types; its elements; and the type, None for f32."""
    if len(sizes) == 1:
        return sizes, np.dtype(np.float32), None
    return quant_shape_to_byte_shape(sizes, _TYPE), np.dtype(np.uint8), _TYPE


def _values(sizes: tuple[int, ...], random: np.random.Generator) -> NDArray[np.generic]:
    """Ones for a norm, random blocks for a matrix."""
    if len(sizes) == 1:
        return np.ones(sizes, np.float32)
    packed = _stored(sizes)[0]
    _, block_bytes = GGML_QUANT_SIZES[_TYPE]
    values = np.frombuffer(random.bytes(math.prod(packed)), np.uint8).copy().reshape(-1, block_bytes)
    values[:, :2] = np.frombuffer(np.float16(_STEP).tobytes(), np.uint8)
    return values.reshape(packed)
