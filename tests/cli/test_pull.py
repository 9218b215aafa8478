import hashlib
from pathlib import Path

import pytest

from foreword.models.catalogue import CATALOGUE, CatalogueEntry
from tests.cli.conftest import Run

_CONTENT = b"a very small model"
_ENTRY = CatalogueEntry(
    package="no-such-package-of-foreword",
    version="1.0",
    wheel_name="no_such_package_of_foreword-1.0-py3-none-any.whl",
    wheel_bytes=100,
    wheel_sha256="0" * 64,
    member="model.gguf",
    file_name="small.gguf",
    num_bytes=len(_CONTENT),
    sha256=hashlib.sha256(_CONTENT).hexdigest(),
    licence="Apache-2.0",
)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models' folder, with one more model to pull and nowhere to pull it from."""
    monkeypatch.setitem(CATALOGUE, "small", _ENTRY)
    monkeypatch.setenv("FOREWORD_HOME", str(tmp_path / "kept"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = tmp_path / "kept" / "models"
    folder.mkdir(parents=True)
    return folder


def test_a_model_that_is_here_is_checked_and_named(run: Run, models: Path) -> None:
    (models / "small.gguf").write_bytes(_CONTENT)

    ran = run("pull", "small", "--json")

    assert ran.code == 0
    assert ran.json == {
        "model": "small",
        "path": str(models / "small.gguf"),
        "sha256": _ENTRY.sha256,
        "bytes": len(_CONTENT),
    }


def test_people_get_one_line(run: Run, models: Path) -> None:
    (models / "small.gguf").write_bytes(_CONTENT)

    ran = run("pull", "small")

    assert ran.out == f"small: {models / 'small.gguf'} (18 B)\n"
    assert ran.err == ""


def test_a_failed_pull_is_one_line_and_leaves_no_model(run: Run, models: Path) -> None:
    ran = run("pull", "small")

    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert not (models / "small.gguf").exists()


def test_a_pulled_model_is_found_by_its_name(run: Run, models: Path) -> None:
    (models / "small.gguf").write_bytes(_CONTENT)

    ran = run("generate", "hello", "--model", "small")

    assert ran.code == 2
    assert "small.gguf" in ran.err  # found, and then refused for what it holds
