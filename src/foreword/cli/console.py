"""What people see: numbers for people, JSON for machines, text that can't drive a terminal, colours only on one."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

_UNSAFE = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


def out_console() -> "Console":
    """Tables and reports, on stdout."""
    from rich.console import Console

    return Console(highlight=False)


def err_console() -> "Console":
    """Progress, summaries and remarks, on stderr, so that stdout holds nothing but the answer."""
    from rich.console import Console

    return Console(file=cast("TextIO", _Remarks()), stderr=True, highlight=False)


class _Remarks:
    """stderr, to which nothing that is written can fail."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> None:
        """Write, see `complain`."""
        with _lost_where_nobody_takes_it():
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush, see `complain`."""
        with _lost_where_nobody_takes_it():
            sys.stderr.flush()


def remark(text: str) -> None:
    """One line on stderr, dim on a terminal; written plainly, as rich takes a tenth of a server's start to import."""
    is_coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = text.translate(_UNSAFE)
    complain(f"\x1b[2m{text}\x1b[0m" if is_coloured else text)


def complain(line: str) -> None:
    """One line on stderr; where the disk is full or nobody reads it is lost, and what was asked for goes on."""
    with _lost_where_nobody_takes_it():
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


@contextmanager
def _lost_where_nobody_takes_it() -> Iterator[None]:
    try:
        yield
    except OSError:
        silence(2)


def silence(descriptor: int) -> None:
    """Let what stdout or stderr has left go nowhere: at exit Python tries once more, and its code would say so."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def write_json(value: Mapping[str, object]) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def write_text(text: str) -> None:
    """Text of a model or a file on stdout, at once.

    On a terminal control characters are replaced: what a model says must not move the cursor, rename the window or
    worse. Into a pipe or a file it goes unchanged.
    """
    sys.stdout.write(text.translate(_UNSAFE) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def one_line(text: str) -> str:
    """Text with line breaks and control characters folded away, for messages of one line."""
    return " ".join(text.split()).translate(_UNSAFE)


def human_bytes(count: float) -> str:
    """A size in binary units: `93.9 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def human_s(seconds: float) -> str:
    """A duration with the digits that matter."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.0f} s"


def human_rate(per_s: float) -> str:
    """Tokens a second with the digits that matter."""
    return f"{per_s:,.1f} tok/s" if per_s < 1000 else f"{per_s:,.0f} tok/s"
