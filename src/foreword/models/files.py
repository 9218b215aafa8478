"""A model as it lies on disk: one GGUF file, or a folder of safetensors with its `config.json`."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from msgspec import Struct

from foreword.core.config import ModelConfig
from foreword.core.errors import ModelFormatError, ModelNotFoundError
from foreword.models.gguf_config import read_gguf_config
from foreword.models.gguf_file import GGUFFile, GGUFValue
from foreword.models.hf_config import read_hf_config
from foreword.models.safetensors_file import SafetensorsFolder
from foreword.ops.raw_tensor import RawTensor


class ModelFiles(Struct, eq=False):
    """An open model. Tensors are views of mapped files; metadata and settings stay usable after `close()`.

    What the text layer needs: for GGUF `metadata`, for a folder the paths of the files that are there.
    """

    path: Path  # as the caller gave it
    kind: Literal["gguf", "safetensors"]
    config: ModelConfig
    notes: tuple[str, ...]  # what a user should know of how the files were read
    tensors: Mapping[str, RawTensor]  # by the file's names
    metadata: Mapping[str, GGUFValue] | None  # GGUF alone
    tokenizer_json: Path | None = None
    tokenizer_config_json: Path | None = None
    generation_config_json: Path | None = None
    chat_template_jinja: Path | None = None
    _source: GGUFFile | SafetensorsFolder | None = None

    def close(self) -> None:
        """Let go of the files; the mappings go with the last view of a tensor."""
        self.tensors = {}
        if self._source is not None:
            self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_model_files(path: str | Path) -> ModelFiles:
    """Open a GGUF file, a folder of safetensors, or a folder that holds one GGUF file.

    Raises:
        ModelNotFoundError: nothing there that could be a model.
        ModelFormatError: a file is malformed, or the model is of a kind not supported; names the file and the field.
    """
    path = Path(path)
    target = _resolve(path)
    return _open_folder(path) if target is None else _open_gguf(path, target)


def weights_digest(path: str | Path) -> bytes:
    """SHA-256 that identifies the model's content, whatever its files are called: 32 bytes.

    Raises:
        ModelNotFoundError, ModelFormatError: as `open_model_files`.
    Cost     reads all weights once.
    """
    path = Path(path)
    target = _resolve(path)
    if target is not None:
        files = [target]
    else:
        with SafetensorsFolder(path) as folder:
            files = [path / "config.json", *folder.weight_paths]
    digest = hashlib.sha256(b"gguf" if target is not None else b"safetensors")
    for name in files:
        with open(name, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()


def _resolve(path: Path) -> Path | None:
    """The GGUF file meant by a path; None where it is a folder of safetensors."""
    try:
        there = path.exists()
    except OSError as error:  # a name too long, a folder that may not be entered
        raise ModelNotFoundError(f"{path}: {error.strerror}") from None
    if not there:
        raise ModelNotFoundError(f"{path}: no such file or folder")
    if not path.is_dir():
        if path.suffix == ".safetensors":
            raise ModelFormatError(path, "path", "expected the folder around it, which holds config.json too")
        return path
    if any(path.glob("*.safetensors")):
        return None
    found = sorted(path.glob("*.gguf"))
    if not found:
        raise ModelNotFoundError(f"{path}: holds neither a .gguf file nor .safetensors files")
    if len(found) > 1:
        raise ModelFormatError(path, "path", f"holds {len(found)} .gguf files; name the one that is meant")
    return found[0]


def _open_gguf(path: Path, target: Path) -> ModelFiles:
    source = GGUFFile(target)
    try:
        config, notes = read_gguf_config(target, source.metadata, source.tensors)
    except BaseException:
        source.close()
        raise
    return ModelFiles(path, "gguf", config, notes, source.tensors, source.metadata, _source=source)


def _open_folder(path: Path) -> ModelFiles:
    config, notes = read_hf_config(path / "config.json")
    source = SafetensorsFolder(path)
    present = {name: path / name if (path / name).is_file() else None for name in _TEXT_FILES}
    return ModelFiles(
        path,
        "safetensors",
        config,
        notes,
        source.tensors,
        None,
        tokenizer_json=present["tokenizer.json"],
        tokenizer_config_json=present["tokenizer_config.json"],
        generation_config_json=present["generation_config.json"],
        chat_template_jinja=present["chat_template.jinja"],
        _source=source,
    )


_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
