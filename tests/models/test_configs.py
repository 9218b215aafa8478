"""`ModelConfig` from metadata and from `config.json`."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import hf_config, tiny_config, tiny_weights, write_gguf, write_safetensors_folder
from tests.hostile.gguf_bytes import f32_value, text_value, u32_value, valid_gguf

from foreword.core.config import ModelConfig, RopeScaling
from foreword.core.errors import ModelFormatError
from foreword.models.files import open_model_files
from foreword.models.hf_config import read_hf_config

YARN = RopeScaling(kind="yarn", factor=4.0, original_max_position=64, beta_fast=16.0, beta_slow=2.0)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("scaling", [RopeScaling(), RopeScaling(kind="linear", factor=2.0), YARN])
@pytest.mark.parametrize("tied", [True, False])
def test_both_kinds_of_file_give_the_config_they_were_written_from(
    architecture: str, scaling: RopeScaling, tied: bool, tmp_path: Path
) -> None:
    config = tiny_config(architecture, rope_scaling=scaling, tied_embeddings=tied, rms_norm_eps=2.0**-17)
    weights = tiny_weights(config)
    paths = [
        write_gguf(tmp_path / "model.gguf", config, weights),
        write_safetensors_folder(tmp_path / "model", config, weights),
    ]

    for path in paths:
        with open_model_files(path) as files:
            assert files.config == config
            assert files.notes == ()


def read(tmp_path: Path, **fields: Any) -> tuple[ModelConfig, tuple[str, ...]]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    return read_hf_config(path)


@pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        # vocabulary, hidden, layers, heads, KV heads, head dimension, intermediate, positions
        ("llama", (32000, 4096, 32, 32, 32, 128, 11008, 2048)),
        ("mistral", (32000, 4096, 32, 32, 8, 128, 14336, 4096)),
        ("qwen2", (151936, 4096, 32, 32, 32, 128, 22016, 32768)),
        ("qwen3", (151936, 4096, 32, 32, 32, 128, 22016, 32768)),
    ],
)
def test_missing_fields_have_the_defaults_of_transformers(
    model_type: str, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    config, _ = read(tmp_path, model_type=model_type)

    assert sizes == (
        config.vocab_size,
        config.hidden_size,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.intermediate_size,
        config.max_position,
    )
    assert (config.rms_norm_eps, config.rope_theta, config.tied_embeddings) == (1e-6, 10_000.0, False)
    assert config.attention_bias is (model_type == "qwen2")
    assert config.qk_norm is (model_type == "qwen3")


def test_a_null_counts_as_missing(tmp_path: Path) -> None:
    config, _ = read(tmp_path, model_type="llama", num_key_value_heads=None, head_dim=None, rope_scaling=None)

    assert (config.num_kv_heads, config.head_dim) == (32, 128)


def test_both_generations_of_rotary_fields_say_the_same(tmp_path: Path) -> None:
    rope = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old, _ = read(tmp_path, model_type="llama", rope_theta=5e5, rope_scaling={**rope, "rope_type": "llama3"})
    older, _ = read(tmp_path, model_type="llama", rope_theta=5e5, rope_scaling={**rope, "type": "llama3"})
    new, _ = read(tmp_path, model_type="llama", rope_parameters={**rope, "rope_type": "llama3", "rope_theta": 5e5})

    assert old == older == new
    assert new.rope_theta == 5e5
    assert new.rope_scaling.kind == "llama3"


def test_a_default_rope_type_is_no_scaling(tmp_path: Path) -> None:
    config, _ = read(tmp_path, model_type="llama", rope_parameters={"rope_type": "default", "rope_theta": 7.0})

    assert config.rope_scaling == RopeScaling()
    assert config.rope_theta == 7.0


def test_yarn_without_a_factor_takes_the_ratio_of_contexts(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "original_max_position_embeddings": 512}
    config, _ = read(tmp_path, model_type="llama", max_position_embeddings=2048, rope_scaling=scaling)

    assert config.rope_scaling.factor == 4.0


@pytest.mark.parametrize(
    ("fields", "max_position"),
    [
        ({"model_type": "mistral", "sliding_window": 256}, 256),
        ({"model_type": "mistral", "sliding_window": None}, 1024),
        ({"model_type": "mistral", "sliding_window": 4096}, 1024),
        ({"model_type": "qwen2", "sliding_window": 256}, 1024),
        ({"model_type": "qwen2", "sliding_window": 256, "use_sliding_window": True}, 256),
        ({"model_type": "llama", "sliding_window": 256}, 1024),
    ],
)
def test_an_active_sliding_window_limits_the_context_and_says_so(
    fields: dict[str, Any], max_position: int, tmp_path: Path
) -> None:
    config, notes = read(tmp_path, max_position_embeddings=1024, **fields)

    assert config.max_position == max_position
    assert notes == (() if max_position == 1024 else ("context limited to its sliding window, 256 tokens",))


def test_a_gguf_s_sliding_window_limits_the_context_too(tmp_path: Path) -> None:
    file = valid_gguf()
    file.pairs["llama.attention.sliding_window"] = u32_value(100)
    path = tmp_path / "model.gguf"
    path.write_bytes(file.build())

    with open_model_files(path) as files:
        assert files.config.max_position == 100
        assert "100 tokens" in files.notes[0]


def test_a_gguf_s_yarn_factor_comes_on_top_of_the_paper_s(tmp_path: Path) -> None:
    file = valid_gguf()
    file.pairs["llama.rope.scaling.type"] = text_value("yarn")
    file.pairs["llama.rope.scaling.factor"] = f32_value(1.0)
    file.pairs["llama.rope.scaling.attn_factor"] = f32_value(1.5)
    path = tmp_path / "model.gguf"
    path.write_bytes(file.build())

    with open_model_files(path) as files:
        assert files.config.rope_scaling.attention_factor == 1.5


def test_old_gguf_files_name_a_linear_scale_alone(tmp_path: Path) -> None:
    file = valid_gguf()
    file.pairs["llama.rope.scale_linear"] = f32_value(4.0)
    path = tmp_path / "model.gguf"
    path.write_bytes(file.build())

    with open_model_files(path) as files:
        assert files.config.rope_scaling == RopeScaling(kind="linear", factor=4.0)


def test_what_would_change_the_model_is_refused_not_ignored(tmp_path: Path) -> None:
    for name in ("auto_map", "quantization_config"):
        with pytest.raises(ModelFormatError, match=name):
            read(tmp_path, **{**hf_config(tiny_config()), name: {"x": "y"}})
