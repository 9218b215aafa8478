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
        fields = getattr(record, "fields", None)
        # The loop's own messages show what it calls with which bytes.
        event = "a callback or a task has failed" if record.name == "asyncio" else record.getMessage()
        entry = self.entry(record.created, record.levelno, event, fields, record.name)
        if record.exc_info and record.exc_info[0] is not None:
            # Where it happened, not what it said: messages of errors may quote a prompt.
            frames = traceback.extract_tb(record.exc_info[2])
            entry["error"] = record.exc_info[0].__name__
            entry["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
        return msgspec.json.encode(entry).decode()

    def entry(self, created: float, level: int, event: str, fields: object, name: str) -> dict[str, object]:
        """What a line says."""
        second = int(created)
        entry: dict[str, object] = {
            "time": f"{self._second(second)}.{int((created - second) * 1000):03d}Z",
            "level": logging.getLevelName(level).lower(),
            "logger": name,
            "event": _cut(event),
        }
        if isinstance(fields, dict):
            for field, value in fields.items():
                entry[field] = _cut(value) if isinstance(value, str) else value
        return entry


def set_up_logging(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send our logs, uvicorn's and the loop's to stderr as JSON, without waiting for whoever reads them."""
    global _ours
    handler = _handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    _ours = handler if isinstance(handler, UnblockedHandler) else None
    for name in ("foreword", "uvicorn.error", "asyncio"):
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


_top = logging.getLogger("foreword")
_formatter = JsonFormatter()
_ours: UnblockedHandler | None = None


def log(event: str, level: int = logging.INFO, **fields: object) -> None:
    """One event with its fields."""
    if not logger.isEnabledFor(level):
        return
    if _ours is not None and _is_read_by_ours_alone():
        # As it is in a server: a record, and its way through the tree of loggers, take three quarters of a line's time.
        with suppress(Exception):  # the way of all logs says what is wrong
            entry = _formatter.entry(time.time(), level, event, fields, logger.name)
            _ours.tell(msgspec.json.encode(entry) + b"\n")
            return
    logger.log(level, event, extra={"fields": fields})


def _is_read_by_ours_alone() -> bool:
    alone = _top.handlers == [_ours] and not _top.propagate
    return alone and logger.propagate and not (logger.handlers or logger.filters)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
