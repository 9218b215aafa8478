"""Safetensors folders that lie: weights, index and `config.json`. Refused by file and field; nothing else happens."""

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import (
    encode,
    hf_config,
    safetensors_bytes,
    tiny_config,
    tiny_weights,
    write_safetensors_folder,
)

from foreword.core.errors import ModelFormatError
from foreword.models.registry import load_model
from foreword.ops.reference import ReferenceBackend

pytestmark = pytest.mark.timeout(20)
CONFIG = tiny_config(
    num_layers=1, hidden_size=32, num_heads=2, num_kv_heads=1, intermediate_size=32, vocab_size=32, tied_embeddings=True
)
WEIGHTS = tiny_weights(CONFIG)
Q = "model.layers.0.self_attn.q_proj.weight"
SLACK_BYTES = 4 << 20

Header = dict[str, Any]


def folder_of(path: Path) -> Path:
    return write_safetensors_folder(path / "model", CONFIG, WEIGHTS)


def load(path: Path) -> None:
    load_model(path, ReferenceBackend())


def refusal(path: Path) -> str:
    """The message of the one error a hostile folder may give; memory is watched."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError) as caught:
            load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * sum(file.stat().st_size for file in path.iterdir() if file.is_file()) + SLACK_BYTES
    assert "\n" not in str(caught.value)
    return str(caught.value)


def parts(data: bytes) -> tuple[Header, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: bytes | Header, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(**fields: Any) -> Callable[[Header, bytes], bytes]:
    return lambda header, body: joined({**header, Q: {**header[Q], **fields}}, body)


def shifted(begin: int, end: int) -> Callable[[Header, bytes], bytes]:
    def change(header: Header, body: bytes) -> bytes:
        first, last = header[Q]["data_offsets"]
        return joined({**header, Q: {**header[Q], "data_offsets": [first + begin, last + end]}}, body)

    return change


def raw(data: bytes) -> Callable[[Header, bytes], bytes]:
    return lambda header, body: data


FILES: dict[str, tuple[Callable[[Header, bytes], bytes], str]] = {
    "empty": (raw(b""), "is empty"),
    "seven bytes": (raw(bytes(7)), "header length"),
    "eight bytes": (raw(bytes(8)), "header length"),
    "header of 1 GiB": (lambda h, b: struct.pack("<Q", 1 << 30) + joined(h, b)[8:], "header length"),
    "header of 2^64 - 1": (lambda h, b: struct.pack("<Q", 2**64 - 1) + joined(h, b)[8:], "header length"),
    "header one byte too long": (lambda h, b: struct.pack("<Q", len(joined(h, b))) + joined(h, b)[8:], "header length"),
    "header not JSON": (raw(joined(b"{nope}", b"")), "JSON"),
    "header not UTF-8": (raw(joined(b'{"\xff": 1}', b"")), "JSON"),
    "header a list": (raw(joined(b"[]", b"")), "object"),
    "header nested 100,000 deep": (raw(joined(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"")), "header"),
    "header with a number of 10,000 digits": (raw(joined(b'{"a":' + b"9" * 10_000 + b"}", b"")), "header"),
    "tensor twice": (
        lambda h, b: joined(json.dumps(h).encode()[:-1] + f", {json.dumps(Q)}: 1}}".encode(), b),
        "appears twice",
    ),
    "entry not an object": (lambda h, b: joined({**h, Q: 7}, b), Q),
    "dtype missing": (entry(dtype=None), "dtype"),
    "dtype unknown": (entry(dtype="F31"), "dtype"),
    "dtype a list": (entry(dtype=["F32"]), "dtype"),
    "dtype of another size": (entry(dtype="F16"), "takes"),
    "dtype of 8-bit floats": (
        lambda h, b: joined({**h, Q: {**h[Q], "dtype": "F8_E4M3", "shape": [32, 128]}}, b),
        "expected shape",
    ),
    "shape negative": (entry(shape=[-32, -32]), "shape"),
    "shape of floats": (entry(shape=[32.0, 32.0]), "shape"),
    "shape of booleans": (entry(shape=[True, 1024]), "shape"),
    "shape huge": (entry(shape=[2**62, 2**62]), "takes"),
    "shape beyond 64 bits": (entry(shape=[2**70]), "shape"),
    "shape of many dimensions": (entry(shape=[1] * 9), "shape"),
    "shape text": (entry(shape="32,32"), "shape"),
    "shape unlike the config": (entry(shape=[64, 16]), "expected shape"),
    "shape with a 0": (entry(shape=[0, 32]), "takes"),
    "offsets missing": (entry(data_offsets=None), "data_offsets"),
    "offsets of three": (entry(data_offsets=[0, 1, 2]), "data_offsets"),
    "offsets negative": (entry(data_offsets=[-4096, 0]), "data_offsets"),
    "offsets reversed": (entry(data_offsets=[4096, 0]), "data_offsets"),
    "offsets huge": (entry(data_offsets=[2**63 - 4097, 2**63 - 1]), Q),
    "offsets overlapping": (shifted(-4, -4), "overlaps"),
    "offsets with a hole": (shifted(4, 4), ""),
    "data cut short": (lambda h, b: joined(h, b[:-1]), "file holds"),
    "data too long": (lambda h, b: joined(h, b + b"\0"), "belong to no tensor"),
    "no tensors": (raw(joined({}, b"")), "is missing"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_lying_file_is_refused_by_name_in_little_memory(name: str, tmp_path: Path) -> None:
    change, expected = FILES[name]
    folder = folder_of(tmp_path)
    load(folder)
    file = folder / "model.safetensors"
    file.write_bytes(change(*parts(file.read_bytes())))

    message = refusal(folder)

    assert str(folder) in message
    assert expected in message


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    for dtype in ("F32", "F16", "BF16"):
        for bad in (np.nan, np.inf):
            values = WEIGHTS[Q].copy()
            values[3, 5] = bad
            folder = write_safetensors_folder(tmp_path / f"{dtype}{bad}", CONFIG, {**WEIGHTS, Q: values}, dtype=dtype)

            assert f"tensor {Q}: holds a value that is not a finite number" in refusal(folder)


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "code from the folder": ({"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}, "auto_map"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    "model type unknown": ({"model_type": "gpt_neox"}, "model_type"),
    "model type a list": ({"model_type": ["llama"]}, "model_type"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "10^9 layers": ({"num_hidden_layers": 10**9}, "num_layers"),
    "10,000 layers": ({"num_hidden_layers": 10_000}, "model.layers.1."),
    "no layers": ({"num_hidden_layers": 0}, "num_layers"),
    "layers as text": ({"num_hidden_layers": "1"}, "num_hidden_layers"),
    "layers as true": ({"num_hidden_layers": True}, "num_hidden_layers"),
    "layers of a size with 5,000 digits": ({"num_hidden_layers": 10**4000}, "num_layers"),
    "head dimension 0": ({"head_dim": 0}, "head_dim"),
    "head dimension odd": ({"head_dim": 15}, "head_dim"),
    "heads 0": ({"num_attention_heads": 0}, "num_heads"),
    "heads no multiple of KV heads": ({"num_attention_heads": 3, "num_key_value_heads": 2}, "num_kv_heads"),
    "hidden size negative": ({"hidden_size": -32}, ""),
    "vocabulary unlike the embedding": ({"vocab_size": 33}, "expected shape"),
    "vocabulary 2^31": ({"vocab_size": 2**31}, "vocab_size"),
    "epsilon 0": ({"rms_norm_eps": 0}, "rms_norm_eps"),
    "epsilon text": ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
    "rope base NaN": ({"rope_theta": float("nan")}, "rope_theta"),
    "rope base infinite": ({"rope_theta": float("inf")}, "rope_theta"),
    "rope base 10^400": ({"rope_theta": 10**400}, "rope_theta"),
    "rope base 0": ({"rope_theta": 0}, "rope_theta"),
    "rope scaling a list": ({"rope_scaling": [1]}, "rope_scaling"),
    "rope scaling unknown": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type"),
    "rope scaling a kind of list": ({"rope_scaling": {"rope_type": ["linear"]}}, "rope_type"),
    "linear without factor": ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
    "linear of factor 0": ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor"),
    "llama3 without factors": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    "llama3 with factors reversed": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 1}},
        "high_freq_factor",
    ),
    "yarn with base 1": ({"rope_theta": 1.0, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_theta"),
    "yarn of a tiny factor": ({"rope_scaling": {"rope_type": "yarn", "factor": 1e-300}}, "rotary"),
    "half of a head rotated": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "sliding window 0": ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
    "tied as text": ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    "untied without a head": ({"tie_word_embeddings": False}, "lm_head.weight"),
    "biases that are not there": ({"attention_bias": True}, "q_proj.bias"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_lying_config_is_refused_by_field(name: str, tmp_path: Path) -> None:
    changes, expected = CONFIGS[name]
    folder = folder_of(tmp_path)
    load(folder)
    (folder / "config.json").write_text(_json({**hf_config(CONFIG), **changes}))

    message = refusal(folder)

    assert str(folder) in message
    assert expected in message


def _json(value: dict[str, Any]) -> str:
    """JSON with integers of any length, which the interpreter would refuse to print."""
    digits = {key: number for key, number in value.items() if isinstance(number, int) and abs(number) > 2**63}
    text = json.dumps({key: f"@{key}@" if key in digits else item for key, item in value.items()})
    for key in digits:
        text = text.replace(f'"@{key}@"', "1" + "0" * 4000)
    return text


def test_a_config_that_is_no_config_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for text in (b"", b"{", b"[]", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100_000, b" " * (17 << 20)):
        (folder / "config.json").write_bytes(text)

        assert "config.json" in refusal(folder)


def test_no_code_of_the_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path)
    canary = tmp_path / "canary"
    for name in ("modeling_evil.py", "configuration_llama.py", "setup.py", "__init__.py"):
        (folder / name).write_text(f"open({str(canary)!r}, 'w').close()\n")
    monkeypatch.chdir(folder)

    load(folder)

    assert not canary.exists()


def sharded(path: Path) -> Path:
    return write_safetensors_folder(path / "model", CONFIG, WEIGHTS, num_shards=2)


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..",
        "",
        "a\0b.safetensors",
        "model.bin",
        ".hidden.safetensors",
        7,
        None,
        ["model.safetensors"],
        "x" * 5000 + ".safetensors",
    ],
)
def test_an_index_leads_nowhere_but_into_its_folder(shard: object, tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    index = folder / "model.safetensors.index.json"
    fields = json.loads(index.read_text())
    fields["weight_map"][Q] = shard
    index.write_text(json.dumps(fields))

    assert str(folder) in refusal(folder)


def test_a_shard_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    shard = next(folder.glob("model-00001*"))
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")

    assert "leads out of the folder" in refusal(folder)


def test_links_within_a_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    cache = tmp_path / "models--x"
    (cache / "blobs").mkdir(parents=True)
    folder = sharded(tmp_path)
    (cache / "snapshots").mkdir()
    snapshot = folder.rename(cache / "snapshots" / "abc")
    for shard in snapshot.glob("model-*.safetensors"):
        blob = shard.rename(cache / "blobs" / shard.stem)
        shard.symlink_to(Path("../../blobs") / blob.name)

    load(snapshot)


def test_an_index_and_its_shards_must_agree(tmp_path: Path) -> None:
    wrong: list[dict[str, object]] = [
        {},
        {"weight_map": {}},
        {"weight_map": [1]},
        {"weight_map": {"no.such": "model-x.safetensors"}},
    ]
    for index_says in wrong:
        folder = sharded(tmp_path / str(len(json.dumps(index_says))))
        (folder / "model.safetensors.index.json").write_text(json.dumps(index_says))
        with pytest.raises(Exception, match=r"weight_map|no such file"):
            load(folder)


def test_a_tensor_the_index_places_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    index = folder / "model.safetensors.index.json"
    fields = json.loads(index.read_text())
    names = sorted(set(fields["weight_map"].values()))
    fields["weight_map"][Q] = names[1 - names.index(fields["weight_map"][Q])]
    index.write_text(json.dumps(fields))

    assert f"weight_map['{Q}']" in refusal(folder)


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")

    assert "not a regular file" in refusal(folder)


@given(data=st.data())
def test_mutated_folders_load_or_are_refused_and_nothing_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_safetensors_folder(tmp_path_factory.getbasetemp() / "mutated", CONFIG, WEIGHTS)
    file = folder / data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, min(len(content), 2500) - 1))
        piece = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from(PIECES)))
        content[start : start + len(piece)] = piece
    file.write_bytes(content)

    message = error_of(folder)

    assert "\n" not in message


PIECES = [b"9", b"-1", b"1e9", b"NaN", b"null", b"[]", b'""', b"true", b"}", b"\0", b"999999999999"]


def error_of(folder: Path) -> str:
    """Why a folder can't be loaded; empty where it can. Any error but `ModelFormatError` escapes and fails the test."""
    try:
        load(folder)
    except ModelFormatError as error:
        return str(error)
    return ""


def test_safetensors_bytes_of_the_factory_are_what_the_format_says() -> None:
    data = safetensors_bytes({"a": ("F32", (2,), encode(np.array([1, 2], np.float32), "F32"))})

    header, body = parts(data)

    assert header == {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    assert np.frombuffer(body, "<f4").tolist() == [1, 2]
