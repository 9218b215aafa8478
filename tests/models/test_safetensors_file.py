from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.factories import tiny_config, tiny_weights, write_safetensors_folder

from foreword.core.errors import ModelFormatError, ModelNotFoundError
from foreword.models.safetensors_file import SafetensorsFile, SafetensorsFolder


def test_a_file_of_the_safetensors_library_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors: dict[str, NDArray[Any]] = {
        "matrix": rng.standard_normal((3, 5)).astype(np.float32),
        "half": rng.standard_normal((2, 4)).astype(np.float16),
        "scalar": np.array(1.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "index": np.arange(6, dtype=np.int64),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})

    with SafetensorsFile(tmp_path / "x.safetensors") as file:
        assert set(file.tensors) == set(tensors)
        for name, values in tensors.items():
            assert file.tensors[name].shape == values.shape
            assert file.tensors[name].data.tobytes() == values.tobytes()
        assert {name: tensor.type for name, tensor in file.tensors.items()} == {
            "matrix": "F32",
            "half": "F16",
            "scalar": "F32",
            "empty": "F32",
            "index": "I64",
        }


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_safetensors_library_reads_the_factory_s_files(dtype: str, tmp_path: Path) -> None:
    config = tiny_config()
    folder = write_safetensors_folder(tmp_path / "m", config, tiny_weights(config), dtype=dtype)

    with safe_open(folder / "model.safetensors", "np") as theirs, SafetensorsFolder(folder) as ours:
        assert set(theirs.keys()) == set(ours.tensors)
        assert {theirs.get_slice(name).get_dtype() for name in theirs.keys()} == {dtype}  # noqa: SIM118


def test_shards_hold_together_what_one_file_holds(tmp_path: Path) -> None:
    config = tiny_config()
    weights = tiny_weights(config)
    whole = write_safetensors_folder(tmp_path / "whole", config, weights)
    shards = write_safetensors_folder(tmp_path / "shards", config, weights, num_shards=3)

    with SafetensorsFolder(whole) as one, SafetensorsFolder(shards) as three:
        assert len(three.weight_paths) == 3
        assert {n: t.data.tobytes() for n, t in one.tensors.items()} == {
            n: t.data.tobytes() for n, t in three.tensors.items()
        }


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    config = tiny_config()
    folder = write_safetensors_folder(tmp_path / "m", config, tiny_weights(config))
    (folder / "model.safetensors").rename(folder / "weights.safetensors")

    with SafetensorsFolder(folder) as opened:
        assert "model.norm.weight" in opened.tensors


def test_several_files_need_an_index(tmp_path: Path) -> None:
    config = tiny_config()
    folder = write_safetensors_folder(tmp_path / "m", config, tiny_weights(config), num_shards=2)
    (folder / "model.safetensors.index.json").unlink()

    with pytest.raises(ModelFormatError, match=r"index\.json: is missing, but there are 2"):
        SafetensorsFolder(folder)


def test_a_folder_without_weights_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors: no such file"):
        SafetensorsFolder(tmp_path)
