"""Logs as one JSON object a line, without prompts, keys or salts."""

import logging
import sys
import time
import traceback
from contextlib import suppress
from typing import TextIO

import msgspec

from foreword.server.limits import MAX_TEXT
from foreword.server.log_stream import UnblockedHandler

logger = logging.getLogger("foreword.server")


class JsonFormatter(logging.Formatter):
    """A record as JSON: control characters are escaped, so no value can forge a line; long values are cut."""

    _last = 0, "1970-01-01T00:00:00"

    def _second(self, second: int) -> str:
        if self._last[0] != second:
            self._last = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return self._last[1]

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry: dict[str, object] = {
            "time": f"{self._second(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _cut(record.getMessage()),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            entry |= {name: _cut(value) if isinstance(value, str) else value for name, value in fields.items()}
        if record.exc_info and record.exc_info[0] is not None:
            # Where it happened, not what it said: messages of errors may quote a prompt.
            frames = traceback.extract_tb(record.exc_info[2])
            entry["error"] = record.exc_info[0].__name__
            entry["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
        return msgspec.json.encode(entry).decode()


def set_up_logging(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send foreword's and uvicorn's logs to stderr as JSON, without waiting for whoever reads them."""
    handler = _handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("foreword", "uvicorn.error"):
        named = logging.getLogger(name)
        named.handlers = [handler]
        named.propagate = False
    logging.getLogger("foreword").setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its start-up lines say what ours say
    logging.getLogger("asyncio").setLevel(logging.ERROR)


def _handler(stream: TextIO | None) -> logging.Handler:
    """The plain one where there is no stderr, none of a descriptor's, or one that this user may not open anew."""
    if stream is not None:
        with suppress(OSError):
            return UnblockedHandler(stream)
    return logging.StreamHandler(stream)


_LIKE = logging.LogRecord(logger.name, logging.INFO, __file__, 0, "", (), None).__dict__


def log(event: str, level: int = logging.INFO, **fields: object) -> None:
    """One event with its fields."""
    if logger.isEnabledFor(level):
        # Not by `logger.log`, which looks through the stack for who calls, nor by a new `LogRecord`, which looks for
        # file, thread and process: three quarters of the time, and no line of ours tells them.
        record = logging.LogRecord.__new__(logging.LogRecord)
        now = time.time()
        record.__dict__.update(_LIKE, msg=event, levelno=level, levelname=logging.getLevelName(level), fields=fields)
        record.created, record.msecs = now, int(now % 1 * 1000)
        logger.handle(record)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
