"""Text from files, pipes and arguments."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from foreword.core.errors import ForewordError

MAX_BYTES = 64 * 2**20


def read_text(path: str) -> str:
    """A UTF-8 file whole, or all of stdin where the path is `-`.

    Raises:
        ForewordError: no such file, too large, or not UTF-8.
    """
    name = "stdin" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).expanduser().open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ForewordError(f"{name}: {(error.strerror or 'cannot be read').lower()}") from None
    if len(data) > MAX_BYTES:
        raise ForewordError(f"{name}: larger than {MAX_BYTES // 2**20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ForewordError(f"{name}: not UTF-8 text (byte {error.start})") from None


def parse_json(text: str, where: str) -> object:
    """The value a JSON text stands for.

    Raises:
        ForewordError: it is none; says where it parts from one.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ForewordError(f"{where}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise ForewordError(f"{where}: JSON nested too deeply, or with a number too long") from None


@contextmanager
def file_or_stdin(path: Path) -> Iterator[Path]:
    """The file, or for `-` a passing one that holds all of stdin, as it is read more than once.

    Raises:
        ForewordError: stdin can't be kept.
    """
    if str(path) != "-":
        yield path.expanduser()
        return
    with ExitStack() as held:
        try:
            kept = Path(held.enter_context(TemporaryDirectory(prefix="foreword-"))) / "stdin"
            with kept.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file, 2**20)
        except OSError as error:
            raise ForewordError(f"stdin: {(error.strerror or 'cannot be kept').lower()}") from None
        try:
            yield kept
        except ForewordError as error:  # nobody knows the file by the name it has here
            raise ForewordError(str(error).replace(str(kept), "stdin")) from None


def prompt_text(prompt: str | None, file: str | None) -> str:
    """The prompt: an argument, a file, or stdin when that is a pipe or `-` was given.

    Raises:
        ForewordError: none of them, two, or one with nothing in it.
    """
    text = _source_text(prompt, file)
    if not text:
        raise ForewordError("prompt: expected at least one character, got none")
    return text


def _source_text(prompt: str | None, file: str | None) -> str:
    if prompt is not None and file is not None:
        raise ForewordError("prompt: give either PROMPT or --file, not both")
    if file is not None:
        return read_text(file)
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        return read_text("-").rstrip("\n")
    if prompt is None:
        raise ForewordError("prompt: nothing to answer; give PROMPT, --file FILE, or pipe text in")
    return prompt
