"""Tests that need the machine for themselves: while one runs, other workers of pytest-xdist wait."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Room:
    """Where tests run: beside others, or once all others have left. Whoever waits to be alone is not overtaken.

    Locks on two files in a folder that all workers share. They end with their process, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        self._door = os.open(
            folder / "door", os.O_WRONLY | os.O_CREAT
        )  # one at a time stands in it, until there is room
        self._room = os.open(folder / "room", os.O_WRONLY | os.O_CREAT)
        self._kept = False

    @contextmanager
    def taken(self, *, alone: bool, keep: bool = False) -> Iterator[None]:
        """Be in the room, `alone` or not; `keep` it for oneself until the next time."""
        if not (self._kept and alone):
            self.leave()
            fcntl.flock(self._door, fcntl.LOCK_EX)
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(self._door, fcntl.LOCK_UN)
        self._kept = alone and keep
        try:
            yield
        finally:
            if not self._kept:
                self.leave()

    def leave(self) -> None:
        """Let others in."""
        fcntl.flock(self._room, fcntl.LOCK_UN)  # closing would not do where a test has forked
        self._kept = False

    def close(self) -> None:
        """Leave for good."""
        self.leave()
        os.close(self._door)
        os.close(self._room)
