from pathlib import Path

import pytest
from tests.factories import tiny_model_files

from foreword.core.errors import ModelFormatError, ModelNotFoundError
from foreword.models.files import open_model_files, weights_digest


def test_a_gguf_is_opened_by_itself_or_by_its_folder(tmp_path: Path) -> None:
    path = tiny_model_files(tmp_path, kind="gguf")

    with open_model_files(str(path)) as by_file, open_model_files(tmp_path) as by_folder:
        assert by_file.config == by_folder.config
        assert by_file.kind == by_folder.kind == "gguf"
        assert by_file.metadata is not None
        assert by_file.tokenizer_json is None


def test_a_folder_tells_which_text_files_it_has(tmp_path: Path) -> None:
    folder = tiny_model_files(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("")

    with open_model_files(folder) as files:
        assert files.kind == "safetensors"
        assert files.metadata is None
        assert files.tokenizer_json == folder / "tokenizer.json"
        assert files.chat_template_jinja == folder / "chat_template.jinja"
        assert files.tokenizer_config_json is None
        assert files.generation_config_json is None


def test_metadata_stays_after_closing(tmp_path: Path) -> None:
    with open_model_files(tiny_model_files(tmp_path, kind="gguf")) as files:
        pass

    assert files.metadata is not None
    assert files.metadata["general.architecture"] == "llama"
    assert not files.tensors


def test_paths_that_hold_no_model_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        open_model_files(tmp_path / "nowhere")
    with pytest.raises(ModelNotFoundError, match="File name too long"):
        open_model_files("x" * 5000)
    with pytest.raises(ModelNotFoundError, match="holds neither"):
        open_model_files(tmp_path)


def test_paths_that_are_ambiguous_or_half_a_model_are_refused(tmp_path: Path) -> None:
    folder = tiny_model_files(tmp_path)
    with pytest.raises(ModelFormatError, match="expected the folder around it"):
        open_model_files(folder / "model.safetensors")
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"config\.json: no such file"):
        open_model_files(folder)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelFormatError, match=r"holds 2 \.gguf files"):
        open_model_files(tmp_path)


def test_the_digest_follows_content_and_not_names(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    path = tiny_model_files(tmp_path, kind="gguf")
    before = weights_digest(path)
    renamed = path.rename(tmp_path / "other" / "renamed.gguf")
    assert len(before) == 32
    assert weights_digest(renamed) == before

    changed = bytearray(renamed.read_bytes())
    changed[-1] ^= 1
    renamed.write_bytes(changed)

    assert weights_digest(renamed) != before


def test_the_digest_of_a_folder_covers_config_and_weights(tmp_path: Path) -> None:
    folder = tiny_model_files(tmp_path)
    before = weights_digest(folder)
    config = (folder / "config.json").read_text()

    (folder / "config.json").write_text(config.replace("10000.0", "10001.0"))
    after_config = weights_digest(folder)
    (folder / "config.json").write_text(config)

    assert after_config != before
    assert weights_digest(folder) == before
    tiny_model_files(tmp_path, seed=1)
    assert weights_digest(folder) != before
