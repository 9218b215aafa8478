"""What describes a model: configurations of many families, GGUF files, folders; and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from foreword.core.errors import ForewordError, ModelFormatError
from foreword.plan.geometry import Geometry, StoredAs
from foreword.plan.source import read_geometry
from tests.factories import tiny_model_files
from tests.plan.models import CONFIGS

SIZES = {"num_hidden_layers": 8, "num_attention_heads": 4, "hidden_size": 64}


def read(folder: Path, **config: Any) -> Geometry:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return read_geometry(path)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_files_tell_shape_and_weights(kind: str, tmp_path: Path) -> None:
    path = tiny_model_files(tmp_path, kind=kind)

    geometry = read_geometry(path)

    assert (len(geometry.layers), geometry.num_heads, geometry.num_kv_heads, geometry.head_dim) == (2, 4, 2, 16)
    assert geometry.max_position == 512
    assert geometry.weight_bytes is not None
    assert (
        0.9 < geometry.weight_bytes / sum(f.stat().st_size for f in ([path] if path.is_file() else path.iterdir())) <= 1
    )


def test_a_folder_may_hold_a_configuration_alone_or_one_gguf(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama-3.1-8b"]))
    assert read_geometry(tmp_path).num_parameters == 8_030_261_248

    folder = tmp_path / "other"
    folder.mkdir()
    tiny_model_files(folder, kind="gguf")
    assert read_geometry(folder).num_heads == 4


@pytest.mark.parametrize(
    ("config", "kv_heads"),
    [
        ({"model_type": "falcon"}, 1),
        ({"model_type": "falcon", "multi_query": False}, 4),
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2}, 2),
        ({"model_type": "gpt_bigcode"}, 1),
        ({"model_type": "gpt_bigcode", "multi_query": False}, 4),
        ({"model_type": "mpt", "attn_config": {"kv_n_heads": 2}}, 2),
        ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2}, 2),
        ({"model_type": "chatglm", "multi_query_group_num": 2}, 4),
        ({"model_type": "starcoder2"}, 2),
        ({"model_type": "llama", "num_key_value_heads": None}, 4),
    ],
)
def test_families_name_their_heads_differently(config: dict[str, Any], kv_heads: int, tmp_path: Path) -> None:
    geometry = read(tmp_path, **SIZES, **config)

    assert geometry.num_kv_heads == kv_heads
    assert geometry.token_bytes(StoredAs(1)) == 2 * 8 * kv_heads * 16


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "qwen2", "sliding_window": 32}, [None] * 8),
        (
            {"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True, "max_window_layers": 6},
            [None] * 6 + [32] * 2,
        ),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True}, [None] * 8),
        ({"model_type": "cohere2"}, [4096, 4096, 4096, None] * 2),
        ({"model_type": "phi3", "sliding_window": 64}, [64] * 8),
        (
            {"model_type": "llama4_text", "layer_types": ["chunked_attention"] * 8, "attention_chunk_size": 128},
            [128] * 8,
        ),
    ],
)
def test_windows(config: dict[str, Any], windows: list[int | None], tmp_path: Path) -> None:
    assert [layer.window for layer in read(tmp_path, **SIZES, **config).layers] == windows


def test_layers_without_k_and_v_are_left_out_and_said_so(tmp_path: Path) -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2

    geometry = read(tmp_path, **SIZES, model_type="qwen3_next", layer_types=kinds)

    assert len(geometry.layers) == 2
    assert geometry.notes[-1] == "6 of 8 layers keep a state of fixed size, not K and V: left out"


def test_an_unknown_family_is_read_by_the_usual_names(tmp_path: Path) -> None:
    geometry = read(tmp_path, **SIZES, model_type="tomorrow")

    assert geometry.token_bytes(StoredAs(1)) == 2 * 8 * 64
    assert "not known" in geometry.notes[0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**SIZES, "num_hidden_layers": 0}, "num_hidden_layers: expected an integer from 1 to 10000, got 0"),
        ({**SIZES, "num_hidden_layers": 10**9}, "num_hidden_layers: expected an integer from 1 to 10000"),
        ({**SIZES, "num_attention_heads": "4"}, "num_attention_heads: expected an integer"),
        ({**SIZES, "num_attention_heads": True}, "num_attention_heads: expected an integer"),
        ({"num_hidden_layers": 8, "num_attention_heads": 4}, "hidden_size: is missing"),
        ({}, "num_attention_heads: is missing"),
        ({**SIZES, "layer_types": ["full_attention"]}, "layer_types: expected a list of 8 names"),
        ({**SIZES, "layer_types": [1] * 8}, "layer_types: expected names of layers"),
        ({**SIZES, "layer_types": ["sliding_attention"] * 8}, "sliding_window: is missing"),
        ({**SIZES, "layer_types": ["linear_attention"] * 8}, "layers: expected 1 to 10000 layers"),
        ({**SIZES, "model_type": 3}, "model_type: expected text"),
        ({**SIZES, "model_type": "qwen2", "sliding_window": 8, "use_sliding_window": "yes"}, "use_sliding_window"),
        ({**SIZES, "is_encoder_decoder": True}, "is_encoder_decoder: models with an encoder are not planned"),
        ({**SIZES, "model_type": "mpt", "attn_config": {"kv_n_heads": 5}}, "kv_n_heads: expected an integer"),
    ],
)
def test_malformed_configurations_get_one_line(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError) as caught:
        read(tmp_path, **config)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["no.gguf", "no.json", "empty", "a.safetensors"])
def test_where_nothing_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(ForewordError):
        read_geometry(tmp_path / name)


def write_metadata(path: Path, arch: str, values: dict[str, Any]) -> Path:
    writer = GGUFWriter(path, arch)
    for name, value in values.items():
        if isinstance(value, list):
            writer.add_array(f"{arch}.{name}", value)
        else:
            writer.add_uint32(f"{arch}.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


GGUF_SIZES = {"block_count": 4, "attention.head_count": 8, "embedding_length": 64, "context_length": 1000}


def test_gguf_of_other_architectures(tmp_path: Path) -> None:
    gemma = write_metadata(
        tmp_path / "gemma.gguf",
        "gemma2",
        {**GGUF_SIZES, "attention.head_count_kv": 4, "attention.key_length": 32, "attention.sliding_window": 100},
    )
    latent = write_metadata(
        tmp_path / "latent.gguf", "deepseek2", {**GGUF_SIZES, "attention.kv_lora_rank": 48, "rope.dimension_count": 16}
    )
    hybrid = write_metadata(tmp_path / "hybrid.gguf", "jamba", {**GGUF_SIZES, "attention.head_count_kv": [0, 2, 0, 2]})

    assert [layer.window for layer in read_geometry(gemma).layers] == [100, None, 100, None]
    assert read_geometry(gemma).token_bytes(StoredAs(1)) == 4 * 2 * 4 * 32
    assert (read_geometry(latent).attention, read_geometry(latent).token_bytes(StoredAs(1))) == ("MLA", 4 * 64)
    assert (len(read_geometry(hybrid).layers), read_geometry(hybrid).token_bytes(StoredAs(1))) == (2, 2 * 2 * 2 * 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_count": 20_000}, "llama.block_count: expected an integer from 0 to 10000"),
        ({"block_count": 0}, "layers: expected 1 to 10000 layers"),
        ({"attention.head_count": 0}, "num_heads: expected an integer from 1 to 2147483647, got 0"),
        ({"attention.head_count_kv": [1, 2]}, "llama.attention.head_count_kv: expected 4 numbers, got 2"),
    ],
)
def test_malformed_gguf_gets_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_metadata(tmp_path / "bad.gguf", "llama", {**GGUF_SIZES, **change})

    with pytest.raises(ModelFormatError) as caught:
        read_geometry(path)

    assert message in str(caught.value)
