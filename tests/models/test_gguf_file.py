import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from tests.factories import tiny_model_files
from tests.hostile.gguf_bytes import ARRAY, STRING, U8, array_value, pair, string, valid_gguf
from tests.smollm2 import SMOLLM2, needs_smollm2

from foreword.core.errors import ModelFormatError, ModelNotFoundError
from foreword.models.gguf_file import GGUFFile


def write(path: Path, fill: object) -> Path:
    writer = GGUFWriter(path, "llama")
    fill(writer)  # type: ignore[operator]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_kind_of_value_is_read_as_it_was_written(tmp_path: Path) -> None:
    def fill(writer: GGUFWriter) -> None:
        writer.add_uint8("u8", 255)
        writer.add_int8("i8", -128)
        writer.add_uint16("u16", 65535)
        writer.add_int16("i16", -32768)
        writer.add_uint32("u32", 2**32 - 1)
        writer.add_int32("i32", -(2**31))
        writer.add_uint64("u64", 2**64 - 1)
        writer.add_int64("i64", -(2**63))
        writer.add_float32("f32", 0.25)
        writer.add_float64("f64", 0.1)
        writer.add_bool("yes", True)
        writer.add_string("text", "à\n\0€")
        writer.add_array("numbers", [1, -2, 3])
        writer.add_array("texts", ["", "a b", "€"])

    with GGUFFile(write(tmp_path / "x.gguf", fill)) as file:
        values = dict(file.metadata)

    numbers = values.pop("numbers")
    assert isinstance(numbers, np.ndarray)
    assert numbers.tolist() == [1, -2, 3]
    assert values == {
        "general.architecture": "llama",
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.25,
        "f64": 0.1,
        "yes": True,
        "text": "à\n\0€",
        "texts": ["", "a b", "€"],
    }
    assert type(values["yes"]) is bool


@pytest.mark.parametrize(
    "texts", [[], [""], ["", ""], ["a"], ["a", "", "b"], ["\0"], ["a\0b", "", "\0\0"], ["€" * 300, "x"]]
)
def test_strings_of_an_array_survive_whatever_they_hold(texts: list[str], tmp_path: Path) -> None:
    file = valid_gguf()
    file.pairs["x"] = array_value(STRING, len(texts), b"".join(string(text) for text in texts))
    path = tmp_path / "model.gguf"
    path.write_bytes(file.build())

    with GGUFFile(path) as opened:
        assert opened.metadata["x"] == texts
        assert opened.metadata["x"] is opened.metadata["x"]


@pytest.mark.parametrize(
    ("tail", "fault"),
    [
        (string("abcdefghijkl")[:-1], "string 2 of 3 ends past"),
        (string("abcdefghijkl")[:6], "string 2 of 3 starts past"),
        (b"", "string 2 of 3 starts past"),
        (struct.pack("<Q", 2**63), "string 2 of 3 ends past"),
        (struct.pack("<Q", 2**64 - 1) + b"abc", "string 2 of 3 ends past"),
    ],
)
def test_strings_cut_off_are_told_by_their_number(tail: bytes, fault: str, tmp_path: Path) -> None:
    before = string("x") + struct.pack("<IIQ", ARRAY, STRING, 3) + string("abcdefghijkl") * 2
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + before + tail)

    with pytest.raises(ModelFormatError, match=f"'x': {fault} the end of the file"):
        GGUFFile(path)


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1])
def test_a_string_longer_than_the_file_is_told_by_its_number_whatever_follows(length: int, tmp_path: Path) -> None:
    strings = string("a") + struct.pack("<Q", length) + string("b") * 4
    path = tmp_path / "model.gguf"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("x") + struct.pack("<IIQ", ARRAY, STRING, 4)
    path.write_bytes(header + strings)

    with pytest.raises(ModelFormatError, match="'x': string 1 of 4 ends past the end of the file"):
        GGUFFile(path)


def test_version_2_is_read_as_version_3(tmp_path: Path) -> None:
    file = valid_gguf()
    file.version = 2
    path = tmp_path / "model.gguf"
    path.write_bytes(file.build())

    with GGUFFile(path) as opened:
        assert len(opened.tensors) == len(file.tensors)


def test_an_empty_array_of_bytes_is_a_value(tmp_path: Path) -> None:
    file = valid_gguf()
    file.extra, file.num_pairs = pair("x", struct.pack("<IIQ", ARRAY, U8, 0)), len(file.pairs) + 1
    path = tmp_path / "model.gguf"
    path.write_bytes(file.build())

    with GGUFFile(path) as opened:
        assert np.asarray(opened.metadata["x"]).shape == (0,)


@pytest.mark.parametrize("matrix_type", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_tensors_are_those_the_gguf_library_reads(matrix_type: str, tmp_path: Path) -> None:
    path = tiny_model_files(tmp_path, kind="gguf", matrix_type=matrix_type)

    with GGUFFile(path) as file:
        expected = GGUFReader(path).tensors
        assert list(file.tensors) == [tensor.name for tensor in expected]
        for theirs in expected:
            ours = file.tensors[theirs.name]
            assert ours.type == theirs.tensor_type.name
            assert ours.shape == tuple(int(size) for size in theirs.shape[::-1])
            assert ours.data.tobytes() == theirs.data.tobytes()


def test_views_of_a_tensor_outlive_the_file(tmp_path: Path) -> None:
    path = tiny_model_files(tmp_path, kind="gguf")
    file = GGUFFile(path)
    tensor = file.tensors["output_norm.weight"]
    before = tensor.data.tobytes()

    file.close()
    path.unlink()

    assert tensor.data.tobytes() == before
    assert not file.tensors


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        GGUFFile(tmp_path / "none.gguf")


@needs_smollm2
def test_smollm2_has_its_vocabulary_and_tensors() -> None:
    with GGUFFile(SMOLLM2) as file:
        tokens, merges = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.merges"]
        assert isinstance(tokens, list)
        assert isinstance(merges, list)
        assert (len(tokens), len(merges), len(file.tensors)) == (49152, 48900, 272)
        assert tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        assert merges[0] == "Ġ t"
