"""From what a user points at to a geometry: a GGUF file, a folder of safetensors, or a `config.json` alone."""

from pathlib import Path

from msgspec.structs import replace

from foreword.core.errors import ModelFormatError, ModelNotFoundError
from foreword.models.safetensors_file import SafetensorsFolder
from foreword.plan.geometry import Geometry
from foreword.plan.gguf_geometry import read_gguf_geometry
from foreword.plan.hf_geometry import read_hf_geometry


def read_geometry(path: Path) -> Geometry:
    """The geometry of a model on disk, by the kind of file it is.

    Raises:
        ModelNotFoundError: nothing there that describes a model.
        ModelFormatError: what is there is malformed, or describes no decoder.
    """
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".json":
        return read_hf_geometry(path)
    if path.suffix == ".safetensors":
        raise ModelFormatError(path, "path", "expected the folder around it, which holds config.json too")
    return read_gguf_geometry(path)


def _read_folder(path: Path) -> Geometry:
    if (path / "config.json").is_file():
        geometry = read_hf_geometry(path / "config.json")
        if not any(path.glob("*.safetensors")):
            return geometry
        with SafetensorsFolder(path) as folder:
            return replace(geometry, weight_bytes=sum(tensor.data.nbytes for tensor in folder.tensors.values()))
    found = sorted(path.glob("*.gguf"))
    if not found:
        raise ModelNotFoundError(f"{path}: holds neither a config.json nor a .gguf file")
    if len(found) > 1:
        raise ModelFormatError(path, "path", f"holds {len(found)} .gguf files; name the one that is meant")
    return read_gguf_geometry(found[0])
