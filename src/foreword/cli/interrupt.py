"""Ctrl-C that lands between two steps of the engine and never inside one."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """The user asked to stop."""


class InterruptFlag:
    """Set by the first Ctrl-C; a second one stops the program wherever it is."""

    def __init__(self) -> None:
        self.is_set = False

    def check(self, **_progress: int) -> None:
        """A progress callback for `LLM`: raises `Interrupted` once Ctrl-C was pressed."""
        if self.is_set:
            raise Interrupted

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True


@contextmanager
def interruptible() -> Iterator[InterruptFlag]:
    """Within this block Ctrl-C sets a flag that is looked at between steps; the old handler comes back after it."""
    flag = InterruptFlag()
    before = signal.signal(signal.SIGINT, flag._on_signal)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
