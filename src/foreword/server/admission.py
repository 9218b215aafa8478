"""The door: how many requests, and how many of their tokens, may wait for their first token.

A place is worth nothing where the wait is longer than one may wait: as many are let in as will be started within half
of the queue's timeout, by the pace at which requests have ended of late, and the others are told at once. Whatever that
pace was, as many are let in as can start without waiting: those who made it slow may all have left.

Where there are several tenants, one may take no more places than stay free: alone it gets half of them, beside others
less, and there is always a place for who asks little.
"""

import math
import time
from collections.abc import Callable

from foreword.core.errors import QueueFullError
from foreword.server.limits import Limits
from foreword.server.pace import PRESSED, Pace
from foreword.server.shares import Shares

WAIT_SHARE = 0.5
"""Of the queue's timeout: how long the last in the queue may have to wait by estimate, which may be wrong by two."""


class Admission:
    """Counts what waits. `num_startable` says how many could start at once. Event loop only."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        *,
        num_startable: Callable[[], int] = lambda: 0,
    ) -> None:
        self._limits = limits
        self._num_startable = num_startable
        self._pace = Pace(limits.queue_timeout_s, clock)
        self.num_tokens = 0
        self._tenants = Shares()
        self._on_full = self._on_free = _nobody_asks

    def watch(self, on_full: Callable[[], None], on_free: Callable[[], None]) -> None:
        """Have it told when somebody is refused and there is no place for anybody, and when there may be one again."""
        self._on_full, self._on_free = on_full, on_free

    @property
    def num_requests(self) -> int:
        """How many wait."""
        return self._tenants.total

    @property
    def num_places(self) -> int:
        """How many may wait now, those that do with them."""
        return self._num_places(self._pace.per_second())

    def _num_places(self, rate: float | None) -> int:
        if rate is None:
            timely = self._limits.unmeasured_requests
        else:
            timely = int(rate * WAIT_SHARE * self._limits.queue_timeout_s)
            timely = max(PRESSED, self._num_startable(), timely)  # fewer than PRESSED would not be measured
        return min(self._limits.max_queued_requests, timely)

    def enter(self, tenant: bytes = b"") -> "Ticket":
        """A place in the queue, before any work is done for the request; with a `tenant`, one of those it may take.

        Raises:
            QueueFullError: as many wait as may.
        """
        wait_s = self.wait_s(tenant)
        if wait_s is not None:
            num_waiting = self._tenants.of(tenant) if tenant else self.num_requests
            raise QueueFullError(f"{num_waiting} requests wait already", wait_s)
        self._tenants.add(tenant, 1)
        self._pace.waiting(self.num_requests)
        return Ticket(self, tenant)

    def wait_s(self, tenant: bytes = b"") -> int | None:
        """Seconds after which to ask again where `enter` would raise; None where it would not."""
        rate = self._pace.per_second()
        num_places = self._num_places(rate)
        free = num_places - self.num_requests
        if free > 0 and not self._tenants.has_share(tenant, free):
            return None
        if free <= 0:
            self._on_full()
        return self._retry_after_s(rate, num_places)

    def leave(self, tenant: bytes, num_tokens: int) -> None:
        """One request waits no more."""
        self._tenants.add(tenant, -1)
        self._pace.waiting(self.num_requests)
        self.num_tokens -= num_tokens
        self._on_free()

    def ended(self) -> None:
        """A request that was computed is over."""
        self._pace.ended()

    def _retry_after_s(self, rate: float | None, num_places: int) -> int:
        """When one more place is likely to be free."""
        if not rate:
            return self._limits.retry_after_s
        too_many = self.num_requests + 1 - num_places
        longest = max(1, int(self._limits.queue_timeout_s))
        return min(longest, max(self._limits.retry_after_s, math.ceil(too_many / rate)))

    def charge(self, num_tokens: int) -> None:
        """Count tokens; more than may wait are let in only when nothing else waits."""
        if self.num_tokens and self.num_tokens + num_tokens > self._limits.max_queued_tokens:
            raise QueueFullError(f"{self.num_tokens} tokens wait already")
        self.num_tokens += num_tokens


def _nobody_asks() -> None:
    pass


class Ticket:
    """One request's place in the queue."""

    def __init__(self, admission: Admission, tenant: bytes) -> None:
        self._admission = admission
        self._tenant = tenant
        self._num_tokens = 0
        self._is_held = True

    def charge(self, num_tokens: int) -> None:
        """Say how many tokens wait with the request.

        Raises:
            QueueFullError: too many tokens wait.
        """
        self._admission.charge(num_tokens)
        self._num_tokens += num_tokens

    def end(self) -> None:
        """The request, which had a first token from the engine, is over."""
        self._admission.ended()

    def leave(self) -> None:
        """The request waits no more: it has its first token, or is over. Harmless when said twice."""
        if self._is_held:
            self._is_held = False
            self._admission.leave(self._tenant, self._num_tokens)
