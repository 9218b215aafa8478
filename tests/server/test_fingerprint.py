"""The name clients know a build of answers by changes with whatever may change them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from foreword.llm.loading import EngineOptions, load
from foreword.server.fingerprint import fingerprint
from tests.cli.conftest import write_tokenizer
from tests.factories import tiny_model_files

BASE = EngineOptions(threads=1, kv_memory_bytes=1 << 20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tiny_model_files(tmp_path, vocab_size=257)
    write_tokenizer(path, ("</s>",))
    return path


def name_of(model: Path, options: EngineOptions) -> str:
    loaded = load(model, options)
    try:
        return fingerprint(loaded)
    finally:
        loaded.close()


def test_each_dtype_of_k_and_v_weights_and_instruction_set_has_its_own(model: Path) -> None:
    others = [
        replace(BASE, kv_dtype="int8"),
        replace(BASE, kv_dtype="f16"),
        replace(BASE, kv_dtype="f32"),
        replace(BASE, weight_dtype="q8"),
        replace(BASE, instruction_set="scalar"),
    ]

    assert len({name_of(model, options) for options in (BASE, *others)}) == 1 + len(others)


def test_what_cannot_change_an_answer_changes_no_name(model: Path) -> None:
    for alike in (replace(BASE, threads=2), replace(BASE, block_size=32), replace(BASE, prefix_cache="none")):
        assert name_of(model, alike) == name_of(model, BASE)
