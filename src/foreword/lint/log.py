"""Reading a request log: JSON lines, plain or gzip, never more than one line in memory."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from foreword.core.errors import ForewordError
from foreword.lint.request import LogError, LoggedRequest, parse_requests
from foreword.replay.lines import Progress, bad_line, read_lines

Source = Callable[[], Iterator[LoggedRequest]]
"""A log that can be read again from its beginning: each repair is replayed over all of it."""


def read_log(path: Path, progress: Progress | None = None) -> Iterator[LoggedRequest]:
    """The requests of a log, in its order.

    Raises:
        ForewordError: the file can't be read, or a line is no request; names the line.
    """
    decoder = msgspec.json.Decoder()
    for number, line in read_lines(path, progress):
        try:
            yield from parse_requests(number, decoder.decode(line))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise bad_line(path, number, "is not JSON, or nested too deep") from None
        except LogError as error:
            raise bad_line(path, number, str(error)) from None


def from_bodies(bodies: Iterable[object]) -> list[LoggedRequest]:
    """The same of requests at hand.

    Raises:
        ForewordError: one is no request; names which.
    """
    requests: list[LoggedRequest] = []
    for number, body in enumerate(bodies, start=1):
        try:
            requests += parse_requests(number, body)
        except LogError as error:
            raise ForewordError(f"request {number}: {error}") from None
    return requests
