"""How many requests a server ends in a second while others wait: what a place in the queue is worth.

Only time in which requests wait is counted. A server that is asked once a minute ends one a minute, and could end a
hundred; a request that waits behind others starts when one of those that run ends, whatever they take.
"""

import math
from collections.abc import Callable

PRESSED = 4
"""So many must wait for the time to count: fewer may only be between two steps."""
ENOUGH = 8
"""So many ends tell a pace."""


class Pace:
    """Counts ends and the time they took, forgotten with half of `memory_s` as the time constant. Event loop only."""

    def __init__(self, memory_s: float, clock: Callable[[], float]) -> None:
        self._memory_s = memory_s
        self._clock = clock
        self._num_waiting = 0
        self._since = clock()  # when the number last changed
        self._calm_since = self._since
        self._seconds = 0.0
        self._ended = 0.0

    def waiting(self, num_waiting: int) -> None:
        """So many wait from now on."""
        self._pass_time()
        if self._num_waiting >= PRESSED > num_waiting:
            self._calm_since = self._since
        self._num_waiting = num_waiting

    def ended(self) -> None:
        """One that ran is over."""
        self._pass_time()
        if self._num_waiting >= PRESSED:
            self._ended += 1.0

    def per_second(self) -> float | None:
        """Ends a second; None while that is not known, or no longer."""
        self._pass_time()
        known = self._ended >= ENOUGH or self._seconds >= self._memory_s / 4
        return self._ended / self._seconds if known and self._seconds > 0 else None

    def _pass_time(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        if self._num_waiting >= PRESSED:
            constant = self._memory_s / 2
            kept = math.exp(-passed / constant)
            self._ended *= kept
            self._seconds = self._seconds * kept + constant * (1.0 - kept)
        elif now - self._calm_since > self._memory_s:
            self._ended = self._seconds = 0.0  # what is asked now may be something else
