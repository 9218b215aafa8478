"""A log that nobody waits for: a line goes out where it is taken at once, and is left out, counted, where it isn't.

A reader that has stopped (a pipe that nobody empties, a terminal halted by Ctrl-S, a collector that hangs) would halt
whoever writes the next line, and here that is the event loop, with every request.
"""

import io
import logging
import os
import socket
import stat
import weakref
from typing import TextIO


class UnblockedHandler(logging.Handler):
    """Writes lines to a stream's descriptor without waiting for whoever reads it."""

    def __init__(self, stream: TextIO) -> None:
        """Open the stream's pipe, terminal or socket anew, so that nobody else's way of writing to it changes.

        Raises:
            OSError: it has no descriptor, or can't be opened anew.
        """
        super().__init__()
        self._out = _unblocked(stream.fileno())
        self._end = weakref.finalize(self, self._out.close)  # loggers drop their handlers without closing them
        self._rest = b""  # of a line of which only the beginning was taken
        self._num_left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line."""
        try:
            self._write(self._line(record))
        except Exception:
            self.handleError(record)

    def tell(self, line: bytes) -> None:
        """Write a line that was made elsewhere, its end with it.

        Raises:
            OSError: nothing can be written.
        """
        assert self.lock is not None
        with self.lock:
            self._write(line)

    def _write(self, line: bytes) -> None:
        """One line, behind one that says how many were left out before it."""
        if self._rest:
            self._rest = self._rest[self._taken(self._rest) :]
        data = self._told_left_out() + line if self._num_left_out else line
        taken = 0 if self._rest else self._taken(data)
        if taken:
            self._rest, self._num_left_out = data[taken:], 0
        else:
            self._num_left_out += 1

    def close(self) -> None:
        """Write no more."""
        self._end()
        super().close()

    def _taken(self, data: bytes) -> int:
        try:
            if isinstance(self._out, socket.socket):
                return self._out.send(data, socket.MSG_DONTWAIT)
            return self._out.write(data) or 0
        except BlockingIOError:
            return 0

    def _told_left_out(self) -> bytes:
        told = logging.LogRecord("foreword.server", logging.WARNING, __file__, 0, "log lines were left out", (), None)
        told.fields = {"lines": self._num_left_out}
        return self._line(told)

    def _line(self, record: logging.LogRecord) -> bytes:
        return self.format(record).encode("utf-8", "backslashreplace") + b"\n"


def _unblocked(descriptor: int) -> io.FileIO | socket.socket:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        return socket.socket(fileno=os.dup(descriptor))
    if stat.S_ISFIFO(mode) or os.isatty(descriptor):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
        return io.FileIO(os.open(f"/proc/self/fd/{descriptor}", flags), "w")
    return io.FileIO(descriptor, "w", closefd=False)  # a file keeps nobody waiting for a reader
