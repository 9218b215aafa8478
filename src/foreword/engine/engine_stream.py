"""What comes out of an engine for one reader, with a bounded buffer between the two."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from foreword.core.errors import StalledError
from foreword.core.outputs import SequenceStep

ItemT = TypeVar("ItemT")

MAX_BUFFERED = 1024
"""Items of each sequence that a stream holds for a reader that falls behind; with one more its requests are ended."""
MAX_SHORTCUTS = 4
"""Streams of a step that may be given its items without the loop: of more, one wake-up of the loop costs less."""

logger = logging.getLogger("foreword.engine")


class EngineStream(Generic[ItemT]):
    """What the engine makes of a few requests, for one reader on the event loop.

    Ends when all of its requests have; an error of one ends them all.
    """

    def __init__(
        self,
        request_ids: Sequence[str],
        receive: Callable[[SequenceStep], ItemT],
        *,
        num_sequences: int,
        abort: Callable[[Sequence[str]], None],
        on_end: Callable[["EngineStream[ItemT]"], None],
    ) -> None:
        """Args: `receive` and `live` are the engine thread's; `abort` and `on_end` are called on the event loop."""
        self.request_ids = tuple(request_ids)
        self.receive = receive
        self.live = set(request_ids)
        self._max_buffered = MAX_BUFFERED * num_sequences
        self._abort = abort
        self._on_end = on_end
        self._items: deque[ItemT] = deque()
        self.on_news: Callable[[], None] | None = None  # called where something has come, or the end
        self.shortcut: Callable[[list[ItemT]], bool] | None = None  # see `pass_on`
        self._num_posted = 0  # items on their way to the loop; the engine thread's
        self._num_pushed = 0  # of these, the loop's
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._ended = False

    @property
    def is_over(self) -> bool:
        """True once everything was taken and nothing more will come; False while an error is still to be raised."""
        return self._ended and not self._items and self._error is None

    def pass_on(self, items: list[ItemT]) -> bool:
        """Give items to the reader's `shortcut`, without the loop; False where that can't be, and nothing was given.

        Engine's thread. Never while items that came before are on their way, or wait for the reader.
        """
        shortcut = self.shortcut
        if shortcut is None or self._num_posted != self._num_pushed or self._items:
            return False
        return shortcut(items)

    @property
    def is_new(self) -> bool:
        """True until the first items are on their way. Engine's thread."""
        return not self._num_posted

    def post(self, items: Sequence[ItemT]) -> None:
        """Note that items are on their way to `push`. Engine's thread."""
        self._num_posted += len(items)

    async def take(self, timeout_s: float | None = None) -> list[ItemT]:
        """All that has come, waiting for the first of it; nothing when `timeout_s` passed, or at the end.

        Raises:
            ForewordError: what ended the requests before their time, once all that came before it was taken.
        """
        if not self._items and not self._ended:
            await self._wait(timeout_s)
        return self.take_now()

    def take_now(self) -> list[ItemT]:
        """All that has come, without waiting.

        Raises:
            ForewordError: as `take` does.
        """
        if not self._items and self._error is not None:
            raise self._error
        items = list(self._items)
        self._items.clear()
        return items

    def close(self, error: Exception | None = None) -> None:
        """End whatever still runs, between two steps; a reader gets `error`, or the end. Harmless when all is over."""
        if not self._ended:
            self._abort(self.request_ids)
            self.end(error)

    def push(self, items: Sequence[ItemT]) -> None:
        """Buffer items for the reader; ends the requests when there are too many."""
        if self._ended:
            return
        self._items.extend(items)
        self._wake()
        self._num_pushed += len(items)  # only now: the reader may have taken them on
        if len(self._items) > self._max_buffered:
            self._items.clear()
            self.close(StalledError(f"the reader is more than {self._max_buffered} pieces behind"))

    def end(self, error: Exception | None) -> None:
        """Nothing more comes; what is buffered can still be read."""
        if not self._ended:
            self._ended, self._error = True, error
            self._on_end(self)
            self._wake()

    async def _wait(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self.on_news is not None:
            self.on_news()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def take_shortcuts(
    items: dict[EngineStream[Any], list[Any]], ended: Sequence[EngineStream[Any]]
) -> list[tuple[EngineStream[Any], Exception]]:
    """Pass a step's items on without the loop, where readers have a way for it; what stays in `items` is the loop's.

    Waking the loop costs as much as all else that is done for a token, and both while kernels want every core. Returns
    the streams whose reader's way failed. Engine's thread.
    """
    failed: list[tuple[EngineStream[Any], Exception]] = []
    if len(items) > MAX_SHORTCUTS:
        return failed
    for stream in [stream for stream in items if stream not in ended]:
        try:
            if stream.pass_on(items[stream]):
                del items[stream]
        except Exception as error:
            logger.exception("a request's text could not be passed on")
            del items[stream]
            failed.append((stream, error))
    return failed
