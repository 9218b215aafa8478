"""Lines of a trace file, plain or gzip, never more than one in memory and none beyond a bound."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from foreword.core.errors import ForewordError

MAX_LINE_BYTES = 16 * 2**20
GZIP_MAGIC = b"\x1f\x8b"

Progress = Callable[[int, int], None]
"""Called with bytes of the file read so far, and its size."""


def read_lines(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, bytes]]:
    """Line numbers, from 1, with lines that are not blank. A gzip file is known by its first bytes.

    Raises:
        ForewordError: no such file, broken compression, or a line longer than `MAX_LINE_BYTES`.
    """
    number = 0
    try:
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            is_gzip = file.read(2) == GZIP_MAGIC
            file.seek(0)
            source: IO[bytes] = gzip.GzipFile(fileobj=file) if is_gzip else file  # type: ignore[assignment]
            while line := source.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise bad_line(path, number, f"longer than {MAX_LINE_BYTES // 2**20} MiB")
                if progress is not None:
                    progress(file.tell(), size)
                if line.strip():
                    yield number, line
    except gzip.BadGzipFile as error:
        raise bad_line(path, number + 1, str(error)) from None
    except OSError as error:
        raise ForewordError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    except (EOFError, zlib.error):
        raise bad_line(path, number + 1, "the gzip data is damaged or cut off") from None


def bad_line(path: Path, number: int, detail: str) -> ForewordError:
    """The one line that says where a trace is wrong."""
    return ForewordError(f"{path}: line {number}: {detail}")
