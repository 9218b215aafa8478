from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import (
    tiny_config,
    tiny_model,
    tiny_model_files,
    tiny_weights,
    write_gguf,
    write_safetensors_folder,
)
from tests.oracles.sequential_generate import sequential_logits

from foreword.core.config import RopeScaling
from foreword.core.errors import InvalidRequestError, ModelFormatError
from foreword.models.registry import load_model
from foreword.models.rope import inverse_frequencies
from foreword.models.weights import WeightDtype
from foreword.ops.reference import ReferenceBackend

PROMPT = [3, 141, 59, 26, 53, 58, 97, 93]


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "llama"},
        {"architecture": "llama", "attention_bias": True, "output_bias": True, "mlp_bias": True},
        {"architecture": "mistral"},
        {"architecture": "qwen2"},
        {"architecture": "qwen3"},
        {"architecture": "qwen3", "attention_bias": True, "output_bias": True},
    ],
)
def test_gguf_and_safetensors_of_one_model_give_the_same_bits(changes: dict[str, Any], tmp_path: Path) -> None:
    logits = [
        sequential_logits(tiny_model(tmp_path, ReferenceBackend(), kind=kind, **changes), PROMPT, chunk=8)
        for kind in ("gguf", "safetensors")
    ]

    assert logits[0].tobytes() == logits[1].tobytes()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_weights_are_kept_exactly(dtype: str, tmp_path: Path) -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    kept = sequential_logits(
        load_model(write_safetensors_folder(tmp_path / "half", config, weights, dtype=dtype), ReferenceBackend()),
        PROMPT,
        chunk=8,
    )
    widened = load_model(tmp_path / "half", ReferenceBackend(), weight_dtype="f32")

    assert kept.tobytes() == sequential_logits(widened, PROMPT, chunk=8).tobytes()


class RecordingBackend(ReferenceBackend):
    """Remembers the types it was given, by the tensor's name."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}

    def pack_matrix(self, parts):  # type: ignore[no-untyped-def]
        self.types |= {part.tensor.name: part.tensor.type for part in parts}
        return super().pack_matrix(parts)


@pytest.mark.parametrize(
    ("weight_dtype", "matrix_type", "embedding", "others"),
    [
        ("auto", "F32", "F32", "F32"),
        ("auto", "Q4_1", "Q4_1", "Q4_1"),
        ("auto", "Q5_0", "Q8_0", "Q8_0"),
        ("f32", "Q4_0", "F32", "F32"),
        ("q8", "F32", "Q8_0", "Q8_0"),
        ("q8", "Q4_0", "Q8_0", "Q8_0"),
        ("q4", "F32", "Q8_0", "Q4_1"),
        ("q4", "Q4_0", "Q8_0", "Q4_0"),
        ("q4", "Q8_0", "Q8_0", "Q4_1"),
    ],
)
def test_weight_dtype_decides_how_matrices_are_kept(
    weight_dtype: WeightDtype, matrix_type: str, embedding: str, others: str, tmp_path: Path
) -> None:
    backend = RecordingBackend()
    path = tiny_model_files(tmp_path, kind="gguf", matrix_type=matrix_type)

    load_model(path, backend, weight_dtype=weight_dtype)

    ends = ("token_embd.weight", "output.weight")
    assert {backend.types.pop(name) for name in ends} == {embedding}
    assert set(backend.types.values()) == {others}


def test_an_unknown_weight_dtype_is_refused(tmp_path: Path) -> None:
    path = tiny_model_files(tmp_path)

    with pytest.raises(InvalidRequestError, match="weight_dtype: expected auto, f32, q8, q4"):
        load_model(path, ReferenceBackend(), weight_dtype="q3")  # type: ignore[arg-type]


def test_weights_too_narrow_for_blocks_are_refused_by_name(tmp_path: Path) -> None:
    path = tiny_model_files(tmp_path, hidden_size=40)

    with pytest.raises(ModelFormatError, match=r"tensor model\.embed_tokens\.weight: rows of 40 values"):
        load_model(path, ReferenceBackend(), weight_dtype="q8")


def test_a_context_may_be_asked_for_below_the_model_s(tmp_path: Path) -> None:
    path = tiny_model_files(tmp_path)

    assert load_model(path, ReferenceBackend(), max_model_len=100).config.max_position == 100
    for wrong in (0, 513, True, "9"):
        with pytest.raises(InvalidRequestError, match="max_model_len"):
            load_model(path, ReferenceBackend(), max_model_len=wrong)  # type: ignore[arg-type]


def test_a_base_model_saved_without_its_prefix_loads(tmp_path: Path) -> None:
    config = tiny_config(tied_embeddings=True)
    weights = {name.removeprefix("model."): values for name, values in tiny_weights(config).items()}
    plain = tiny_model(tmp_path, ReferenceBackend(), tied_embeddings=True)
    bare = load_model(write_safetensors_folder(tmp_path / "bare", config, weights), ReferenceBackend())

    assert sequential_logits(bare, PROMPT).tobytes() == sequential_logits(plain, PROMPT).tobytes()


def test_a_tied_head_that_is_stored_all_the_same_is_not_used(tmp_path: Path) -> None:
    config = tiny_config(tied_embeddings=True)
    weights = tiny_weights(config)
    extra = {**weights, "lm_head.weight": np.zeros((256, 64), np.float32)}
    plain = load_model(write_safetensors_folder(tmp_path / "plain", config, weights), ReferenceBackend())
    stored = load_model(write_safetensors_folder(tmp_path / "stored", config, extra), ReferenceBackend())

    assert sequential_logits(stored, PROMPT).tobytes() == sequential_logits(plain, PROMPT).tobytes()


def test_derived_frequencies_of_old_checkpoints_are_ignored_and_other_strangers_refused(tmp_path: Path) -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    old = {**weights, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    load_model(write_safetensors_folder(tmp_path / "old", config, old), ReferenceBackend())

    strange = {**weights, "model.layers.0.self_attn.q_proj.lora_A": np.ones((1, 64), np.float32)}
    with pytest.raises(ModelFormatError, match="lora_A: has no place"):
        load_model(write_safetensors_folder(tmp_path / "strange", config, strange), ReferenceBackend())


def test_rope_divisors_of_a_gguf_are_llama3_scaling(tmp_path: Path) -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, original_max_position=64)
    config = tiny_config(rope_scaling=scaling)
    weights = tiny_weights(config)
    divisors = inverse_frequencies(tiny_config())[0] / inverse_frequencies(config)[0]
    path = write_gguf(tmp_path / "m.gguf", config, weights, rope_divisors=divisors)
    folder = write_safetensors_folder(tmp_path / "m", config, weights)

    from_gguf = sequential_logits(load_model(path, ReferenceBackend()), PROMPT * 8, chunk=64)
    from_folder = sequential_logits(load_model(folder, ReferenceBackend()), PROMPT * 8, chunk=64)

    # Dividing by a rounded quotient gives the frequency back to within a unit in the last place.
    assert np.abs(from_gguf - from_folder).max() < 1e-4
