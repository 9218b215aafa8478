"""A lock that lets the next one in: for threads that each take it again and again."""

import threading
from types import TracebackType


class FairLock:
    """A reentrant lock whose holder, letting go, can't have it back before one who waits.

    A plain lock is won most of the time by whoever just let it go, as the waiter has still to wake up: a thread that
    steps the engine in a loop would keep all others out until its call has ended.
    """

    def __init__(self) -> None:
        self._door = threading.Lock()  # held by the one who is next
        self._room = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self._owner != thread:
            with self._door:
                self._room.acquire()
            self._owner = thread
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._room.release()
