"""The door: how many requests, and how many of their tokens, may wait for their first token.

Where there are several tenants, one may take no more places than stay free: alone it gets half of them, beside others
less, and there is always a place for who asks little.
"""

from collections import Counter

from foreword.core.errors import QueueFullError
from foreword.server.limits import Limits


class Admission:
    """Counts what waits. Event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.num_requests = 0
        self.num_tokens = 0
        self._tenants: Counter[bytes] = Counter()

    def enter(self, tenant: bytes = b"") -> "Ticket":
        """A place in the queue, before any work is done for the request; with a `tenant`, one of those it may take.

        Raises:
            QueueFullError: as many wait as may.
        """
        free = self._limits.max_queued_requests - self.num_requests
        if free <= 0 or (tenant and self._tenants[tenant] >= free):
            raise QueueFullError(f"{self._tenants[tenant] if tenant else self.num_requests} requests wait already")
        self.num_requests += 1
        self._tenants[tenant] += 1
        return Ticket(self, tenant)

    def leave(self, tenant: bytes, num_tokens: int) -> None:
        """One request waits no more."""
        self.num_requests -= 1
        self.num_tokens -= num_tokens
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]

    def charge(self, num_tokens: int) -> None:
        """Count tokens; more than may wait are let in only when nothing else waits."""
        if self.num_tokens and self.num_tokens + num_tokens > self._limits.max_queued_tokens:
            raise QueueFullError(f"{self.num_tokens} tokens wait already")
        self.num_tokens += num_tokens


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

    def leave(self) -> None:
        """The request waits no more: it has its first token, or is over. Harmless when said twice."""
        if self._is_held:
            self._is_held = False
            self._admission.leave(self._tenant, self._num_tokens)
