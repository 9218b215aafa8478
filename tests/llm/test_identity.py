"""The identity that block hashes leave the process with: everything K and V depend on, and nothing else."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.factories import tiny_model_files
from tests.text.tiny import byte_level_tokenizer, sentencepiece_tokenizer

from foreword.llm.loading import EngineOptions, cache_identity, make_backend
from foreword.models.registry import open_model_files
from foreword.text.tokenizer import Tokenizer

BASE = EngineOptions(threads=1, block_size=16)


def root(path: Path, options: EngineOptions = BASE, tokenizer: Tokenizer | None = None) -> bytes:
    with open_model_files(path) as files:
        return cache_identity(files, tokenizer or byte_level_tokenizer(), make_backend(options), options).root()


def test_equal_models_run_alike_have_one_identity(tmp_path: Path) -> None:
    first, second = (tiny_model_files(tmp_path / name) for name in ("one", "two"))

    assert root(first) == root(second)
    for alike in (replace(BASE, threads=2), replace(BASE, max_num_seqs=3), replace(BASE, token_budget=7)):
        assert root(first, alike) == root(first)


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, kv_dtype="f32"),
        replace(BASE, kv_dtype="int8"),
        replace(BASE, kv_dtype="f16"),
        replace(BASE, block_size=32),
        replace(BASE, weight_dtype="q8"),
        replace(BASE, backend="reference"),
        replace(BASE, instruction_set="scalar"),
    ],
)
def test_whatever_changes_k_or_v_changes_it(tmp_path: Path, other: EngineOptions) -> None:
    path = tiny_model_files(tmp_path)

    assert root(path, other) != root(path)


def test_other_weights_or_another_tokenizer_are_another_identity(tmp_path: Path) -> None:
    path = tiny_model_files(tmp_path / "one")

    assert root(tiny_model_files(tmp_path / "two", seed=1)) != root(path)
    assert root(tiny_model_files(tmp_path / "three", rope_theta=5000.0)) != root(path)
    assert root(path, tokenizer=sentencepiece_tokenizer()) != root(path)
