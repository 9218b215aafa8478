"""An event loop that leaves its sockets to the system for a moment while there is no place for anybody.

Each time the loop wakes it finds its caches full of what kernels read, and takes a core that both threads of a step
then wait for. Ten refusals in ten turns cost twice what they cost in one. So from a refusal for want of any place on,
sockets are not looked at for `REST_S`, or until a place is free: who could be let in waits for nothing.

What else wakes a loop is heeded as ever: calls from other threads, signals and timers. So tokens go out as they come.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Mapping
from typing import Any

REST_S = 0.025
"""By so much later a full server may see what it is asked, and that a client has left."""


class UnhurriedSelector(selectors.DefaultSelector):
    """While it rests it tells only of what was registered before `settle`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._own = selectors.DefaultSelector()  # the loop's: what other threads and signals wake it by
        self._is_settled = False
        self._rests_until = 0.0

    def settle(self) -> None:
        """What is registered from now on can wait."""
        self._is_settled = True

    def rest(self) -> None:
        """Tell of nothing that can wait for `REST_S`; of one rest, however often it is asked for."""
        now = self._clock()
        if now >= self._rests_until:
            self._rests_until = now + REST_S

    def wake(self) -> None:
        """End a rest."""
        self._rests_until = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """As any selector does."""
        key = super().register(fileobj, events, data)
        if not self._is_settled:
            self._own.register(fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """As any selector does."""
        if fileobj in _map_of(self._own):
            self._own.unregister(fileobj)
        return super().unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """As any selector does."""
        if fileobj in _map_of(self._own):
            self._own.modify(fileobj, events, data)
        return super().modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready, after `timeout` at the latest, in a rest and behind it."""
        left = self._rests_until and self._rests_until - self._clock()
        if left > 0:
            is_over = timeout is None or timeout >= left
            found = self._own.select(left if is_over else timeout)
            if found or not is_over:
                return found
            timeout = None if timeout is None else timeout - left
        self._rests_until = 0.0
        return super().select(timeout)

    def close(self) -> None:
        """As any selector does."""
        self._own.close()
        super().close()


class UnhurriedLoop(asyncio.SelectorEventLoop):
    """asyncio's, with rests. `rest` and `wake` in the loop's own thread."""

    def __init__(self) -> None:
        selector = UnhurriedSelector()
        super().__init__(selector)
        selector.settle()
        self.rest, self.wake = selector.rest, selector.wake


def _map_of(selector: selectors.BaseSelector) -> Mapping[Any, selectors.SelectorKey]:
    return selector.get_map() or {}  # None once it is closed
