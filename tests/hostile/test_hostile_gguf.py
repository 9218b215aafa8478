"""GGUF files that lie. Each gives `ModelFormatError` naming the field, at once, in little memory, and nothing else."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.hostile.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    U8,
    U32,
    U64,
    GGUFBytes,
    Tensor,
    array_value,
    f32_value,
    pair,
    string,
    text_value,
    u32_value,
    valid_gguf,
)
from tests.profile import DEEP

from foreword.core.errors import ModelFormatError
from foreword.models.files import open_model_files
from foreword.models.registry import load_model
from foreword.ops.reference import ReferenceBackend

pytestmark = pytest.mark.timeout(20)
HUGE = (2**31, 2**32 - 1, 2**63, 2**64 - 1)
SLACK_BYTES = 4 << 20  # of the interpreter's own: error messages, imports

Change = Callable[[GGUFBytes], object]


def with_pair(key: str | bytes, value: bytes) -> Change:
    return lambda file: file.pairs.__setitem__(key, value)


def without_pair(key: str) -> Change:
    return lambda file: file.pairs.pop(key)


def with_extra(count: int, data: bytes) -> Change:
    def change(file: GGUFBytes) -> None:
        file.extra, file.num_pairs = data, len(file.pairs) + count

    return change


def with_tensor(which: str, **fields: object) -> Change:
    def change(file: GGUFBytes) -> None:
        for key, value in fields.items():
            setattr(file.tensor(which), key, value)

    return change


def with_yarn(factor: float = 4.0, base: float = 1e4, beta_fast: float = 32.0, original: int = 64) -> Change:
    return lambda file: file.pairs.update(
        {
            "llama.rope.freq_base": f32_value(base),
            "llama.rope.scaling.type": text_value("yarn"),
            "llama.rope.scaling.factor": f32_value(factor),
            "llama.rope.scaling.yarn_beta_fast": f32_value(beta_fast),
            "llama.rope.scaling.original_context_length": u32_value(original),
        }
    )


def without_tensor(name: str) -> Change:
    return lambda file: file.tensors.remove(file.tensor(name))


def with_field(name: str, value: object) -> Change:
    return lambda file: setattr(file, name, value)


def with_weights(name: str, values: NDArray[np.float64]) -> Change:
    return with_tensor(name, data=values.astype("<f4").tobytes())


def nested(depth: int) -> bytes:
    return struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQB", U8, 1, 0)


def with_second(tensor: Tensor) -> Change:
    return lambda file: file.tensors.append(tensor)


def nan_scale_q8_0() -> bytes:
    return (np.array([np.nan], "<f2").tobytes() + bytes(32)) * 32


HUGE_CONTEXT = {"llama.context_length": u32_value(2**31 - 1)}
Q = "blk.0.attn_q.weight"
CORPUS: dict[str, tuple[Change, str]] = {
    "magic": (with_field("magic", b"GGML"), "magic"),
    "version 0": (with_field("version", 0), "version"),
    "version 1": (with_field("version", 1), "version"),
    "version 4": (with_field("version", 4), "version"),
    "big endian": (with_field("version", 3 << 24), "big-endian"),
    **{f"tensor count {n}": (with_field("num_tensors", n), "tensor_count") for n in HUGE},
    **{f"key count {n}": (with_field("num_pairs", n), "metadata_kv_count") for n in HUGE},
    "no tensors": (with_field("num_tensors", 0), "token_embd.weight"),
    "no keys": (with_field("num_pairs", 0), ""),
    "one key more than there is": (lambda f: setattr(f, "num_pairs", len(f.pairs) + 1), ""),
    "one tensor more than there is": (lambda f: setattr(f, "num_tensors", len(f.tensors) + 1), ""),
    **{f"key of {n} bytes": (with_extra(1, struct.pack("<Q", n) + b"x"), "metadata key") for n in HUGE},
    **{f"text of {n} bytes": (with_extra(1, string("x") + struct.pack("<IQ", STRING, n)), "x") for n in HUGE},
    "key that is not UTF-8": (with_pair(b"\xff\xfe", u32_value(1)), "UTF-8"),
    "text that is not UTF-8": (with_pair("general.name", text_value(b"\xff")), "general.name"),
    "key twice": (with_extra(1, pair("llama.block_count", u32_value(1))), "llama.block_count"),
    "value of unknown type": (with_pair("x", struct.pack("<II", 99, 1)), "unknown value type"),
    "element of unknown type": (with_pair("x", array_value(99, 1, b"\0")), "unknown element type"),
    **{f"array of {n} numbers": (with_pair("x", array_value(U64, n, b"")), "x") for n in HUGE},
    **{f"array of {n} strings": (with_pair("x", array_value(STRING, n, b"")), "x") for n in HUGE},
    "string in an array past the end": (with_pair("x", array_value(STRING, 1, struct.pack("<Q", 2**63))), "x"),
    "array of arrays": (with_pair("x", array_value(ARRAY, 1, struct.pack("<IQB", U8, 1, 0))), "arrays of arrays"),
    "arrays nested 100,000 deep": (with_pair("x", nested(100_000)), "arrays of arrays"),
    "boolean of 2": (with_pair("x", struct.pack("<IB", BOOL, 2)), "boolean"),
    **{
        f"alignment {n}": (with_pair("general.alignment", u32_value(n)), "general.alignment") for n in (0, 1, 24, 2**31)
    },
    "alignment as text": (with_pair("general.alignment", text_value("32")), "general.alignment"),
    "alignment that makes offsets uneven": (with_pair("general.alignment", u32_value(4096)), "not a multiple"),
    "architecture missing": (without_pair("general.architecture"), "general.architecture"),
    "architecture unknown": (with_pair("general.architecture", text_value("../evil\n")), "general.architecture"),
    "architecture a number": (with_pair("general.architecture", u32_value(1)), "general.architecture"),
    "split file": (with_pair("split.count", u32_value(3)), "split.count"),
    "experts": (with_pair("llama.expert_count", u32_value(8)), "expert_count"),
    **{
        f"{key} {n}": (with_pair(f"llama.{key}", u32_value(n)), "")
        for key in ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv")
        for n in (0, 10**9, 2**32 - 1)
    },
    **{f"feed_forward_length {n}": (with_pair("llama.feed_forward_length", u32_value(n)), "") for n in (0, 2**32 - 1)},
    "rotary base and context that overflow": (
        lambda f: (with_pair("llama.rope.freq_base", f32_value(1e-36))(f), f.pairs.update(HUGE_CONTEXT)),
        "rotary",
    ),
    "context of 0": (with_pair("llama.context_length", u32_value(0)), "max_position"),
    "layer count as text": (with_pair("llama.block_count", text_value("1")), "llama.block_count"),
    "layer count as true": (with_pair("llama.block_count", struct.pack("<IB", BOOL, 1)), "llama.block_count"),
    "layer count missing": (without_pair("llama.block_count"), "llama.block_count"),
    "epsilon NaN": (with_pair("llama.attention.layer_norm_rms_epsilon", f32_value(float("nan"))), "epsilon"),
    "rope base NaN": (with_pair("llama.rope.freq_base", f32_value(float("nan"))), "rope.freq_base"),
    "rope base infinite": (with_pair("llama.rope.freq_base", f32_value(float("inf"))), "rope.freq_base"),
    "rope base negative": (with_pair("llama.rope.freq_base", f32_value(-1.0)), "rope_theta"),
    "rope base tiny": (with_pair("llama.rope.freq_base", f32_value(1e-45)), "rotary"),
    "rope scaling of factor 0": (with_yarn(factor=0.0), "rope.scaling.factor"),
    "yarn with base 1": (with_yarn(base=1.0), "rotary"),
    "yarn that turns no time": (with_yarn(beta_fast=0.0), "rotary"),
    "yarn from a context of 0": (with_yarn(original=0), "rotary"),
    "rope scaling unknown": (with_pair("llama.rope.scaling.type", text_value("longrope")), "rope.scaling.type"),
    "rope dimension partial": (with_pair("llama.rope.dimension_count", u32_value(8)), "rope.dimension_count"),
    "head dimension 0": (with_pair("llama.attention.key_length", u32_value(0)), ""),
    "head dimension odd": (with_pair("llama.attention.key_length", u32_value(15)), ""),
    "heads that differ by layer": (
        with_pair("llama.attention.head_count_kv", array_value(U32, 2, struct.pack("<II", 1, 2))),
        "layers of different sizes",
    ),
    "vocabulary unlike the embedding": (with_pair("llama.vocab_size", u32_value(31)), "llama.vocab_size"),
    "tokens unlike the embedding": (with_pair("tokenizer.ggml.tokens", array_value(STRING, 1, string("a"))), "tokens"),
    "token that is not UTF-8": (
        with_pair("tokenizer.ggml.tokens", array_value(STRING, 32, string("a") * 31 + string(b"\xff"))),
        "string 31",
    ),
    "tensor name not UTF-8": (with_tensor(Q, name=b"\xff"), "UTF-8"),
    "tensor twice": (with_second(Tensor(Q, (32, 32), bytes(4096))), "appears twice"),
    "tensor of no dimensions": (with_tensor(Q, sizes=()), "dimensions"),
    "tensor of 5 dimensions": (with_tensor(Q, sizes=(32, 32, 1, 1, 1)), "dimensions"),
    "tensor of 2^32 - 1 dimensions": (with_tensor(Q, num_dimensions=2**32 - 1), "dimensions"),
    "dimension of 0": (with_tensor(Q, sizes=(32, 0)), "size 0"),
    **{f"dimension of {n}": (with_tensor(Q, sizes=(32, n)), "file ends") for n in HUGE},
    "dimensions whose product wraps to 0": (with_tensor(Q, sizes=(2**32, 2**32)), "file ends"),
    "dimensions whose bytes wrap": (with_tensor(Q, sizes=(2**31, 2**31, 4)), "file ends"),
    "one row more than the file holds": (with_tensor("output_norm.weight", sizes=(10**6,)), "file ends"),
    "shape unlike the config": (with_tensor(Q, sizes=(16, 64)), "expected shape"),
    "shape transposed": (with_tensor("blk.0.attn_k.weight", sizes=(16, 32)), "expected shape"),
    "matrix where a vector belongs": (with_tensor("output_norm.weight", sizes=(32, 1)), "expected shape"),
    "unknown tensor type": (with_tensor(Q, type_code=4), "unknown tensor type"),
    "tensor type 2^31": (with_tensor(Q, type_code=2**31), "unknown tensor type"),
    "integers as weights": (with_tensor(Q, type_code=26), "I32"),
    "rows that are no whole blocks": (with_tensor("blk.0.attn_k.weight", sizes=(16, 32), type_code=8), "whole blocks"),
    **{f"offset {n}": (with_tensor(Q, offset=n), "") for n in (1, 31, 2**32, 2**63, 2**64 - 32, 2**64 - 1)},
    "offset of another tensor": (with_tensor(Q, offset=0), "overlaps"),
    "tensor missing": (without_tensor("blk.0.ffn_up.weight"), "is missing"),
    "embedding missing": (without_tensor("token_embd.weight"), "token_embd.weight"),
    "tensor with no place": (with_second(Tensor("blk.0.attn_q.bias", (32,), bytes(128))), "attn_k.bias"),
    "tensor of a layer too many": (with_second(Tensor("blk.1.attn_norm.weight", (32,), bytes(128))), "no place"),
    "weight NaN": (with_weights(Q, np.full((32, 32), np.nan)), "not a finite number"),
    "weight infinite": (with_weights("blk.0.ffn_down.weight", np.full((32, 32), np.inf)), "not a finite number"),
    "norm NaN": (with_weights("output_norm.weight", np.full(32, np.nan)), "not a finite number"),
    "scale NaN": (with_tensor(Q, type_code=8, data=nan_scale_q8_0()), "not a finite number"),
    "rope divisors of 0": (with_second(Tensor("rope_freqs.weight", (8,), bytes(32))), "rotary"),
    "rope divisors of another size": (with_second(Tensor("rope_freqs.weight", (4,), bytes(16))), "rope_freqs.weight"),
}


def load(path: Path) -> None:
    load_model(path, ReferenceBackend())


def test_the_file_the_others_are_made_of_loads(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(valid_gguf().build())

    model = load_model(path, ReferenceBackend())

    assert model.config.vocab_size == 32


@pytest.mark.parametrize("name", CORPUS)
def test_a_lying_file_is_refused_by_name_in_little_memory(name: str, tmp_path: Path) -> None:
    change, expected = CORPUS[name]
    file = valid_gguf()
    change(file)
    path = tmp_path / "model.gguf"
    path.write_bytes(file.build())
    load_once_so_that_imports_are_paid(tmp_path)
    tracemalloc.start()

    try:
        with pytest.raises(ModelFormatError) as caught:
            load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert str(path) in str(caught.value)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert peak < 2 * path.stat().st_size + SLACK_BYTES


def load_once_so_that_imports_are_paid(folder: Path) -> None:
    path = folder / "valid.gguf"
    path.write_bytes(valid_gguf().build())
    load(path)


def error_of(path: Path) -> str:
    """Why a file can't be loaded; empty where it can. Any error but `ModelFormatError` escapes and fails the test."""
    try:
        load(path)
        with open_model_files(path) as files:
            for _ in (files.metadata or {}).values():  # strings are decoded only now
                pass
    except ModelFormatError as error:
        return str(error)
    return ""


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = valid_gguf().build()
    path = tmp_path / "model.gguf"
    lengths = [*range(0, 1200), *range(1200, len(whole), 97), len(whole) - 32]

    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFormatError):
            load(path)


@given(data=st.data())
def test_mutated_bytes_load_or_are_refused_and_nothing_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 6))):
        # Most of the file is weights; most of what can go wrong is in the header.
        start = data.draw(st.one_of(st.integers(0, HEADER_BYTES - 1), st.integers(0, len(whole) - 1)))
        piece = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from(EXTREMES)))
        whole[start : start + len(piece)] = piece
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(whole)

    message = error_of(path)

    assert "\n" not in message


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="takes minutes; HYPOTHESIS_PROFILE=deep")
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutations_load_or_are_refused_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "mutated.gguf"
    rng = random.Random(20_240_601)

    for _ in range(100_000):
        whole = bytearray(WHOLE)
        for _ in range(rng.randint(1, 5)):
            start = rng.randrange(HEADER_BYTES if rng.random() < 0.8 else len(whole))
            piece = rng.choice(EXTREMES) if rng.random() < 0.4 else rng.randbytes(rng.randint(1, 8))
            whole[start : start + len(piece)] = piece
        path.write_bytes(whole)

        assert "\n" not in error_of(path)


WHOLE = valid_gguf().build()
HEADER_BYTES = len(WHOLE) - sum(len(tensor.data) + -len(tensor.data) % 32 for tensor in valid_gguf().tensors)
EXTREMES = [struct.pack("<Q", n) for n in (0, *HUGE, 2**40, 2**16)] + [struct.pack("<I", n) for n in (0, 2**31, 9, F32)]
