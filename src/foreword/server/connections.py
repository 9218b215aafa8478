"""Whose the places of open connections are: bounded, and kept only by those whose requests are being answered.

A connection *rests* while no tenant's request on it is under way: it has said nothing yet, says its head slowly, asks
without a key, or is kept alive behind an answer. Where all places are taken, a new connection gets that of one that
rests: of whoever has most of these, the one that has rested longest. Whose it is, is known from the last request: a
tenant's; before, it is its address's. So who opens or keeps many loses their own, and nobody else's.

With keys, a tenant keeps no more places than stay free, as in the queue: alone half of them, beside others less, and
there is always one for who asks little.
"""

import socket
from collections.abc import Callable, Sequence

from foreword.server.errors import ApiError
from foreword.server.limits import Limits
from foreword.server.metrics import Metrics
from foreword.server.shares import Shares

_NETWORK_BYTES = 8
"""Of an IPv6 address: the rest is for its owner to choose."""


class Connections:
    """All that are open. Event loop only."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.most = limits.max_connections
        self._retry_after_s = limits.retry_after_s
        self._metrics = metrics
        self._resting: dict[bytes, dict[Connection, None]] = {}  # by owner; first who has rested longest
        self._kept = Shares()  # by tenant
        self.num_open = 0
        metrics.watch_gauge("foreword:connections", "Open connections", lambda: self.num_open)
        metrics.watch_gauge("foreword:connections_kept", "Of these, with a request under way", lambda: self.num_kept)

    @property
    def num_kept(self) -> int:
        """Connections with a tenant's request under way."""
        return self._kept.total

    def open(self, owner: bytes, close: Callable[[], None]) -> "Connection | None":
        """A place for a new connection, which `close` ends; None when every place is kept."""
        if self.num_open >= self.most and not self._displace():
            return None
        self.num_open += 1
        return Connection(self, owner, close)

    def _displace(self) -> bool:
        if not self._resting:
            return False
        owner = max(self._resting, key=lambda owner: len(self._resting[owner]))
        oldest = next(iter(self._resting[owner]))
        oldest.end()
        oldest.close()
        self._metrics.displaced()
        return True

    def check(self, tenant: bytes) -> None:
        """Refuse a tenant that keeps its share.

        Raises:
            ApiError: 429.
        """
        if self._kept.has_share(tenant, self.most - self.num_kept):
            self._metrics.refused("tenant_connections")
            message = f"{self._kept.of(tenant)} requests of yours are under way, as many as connections stay for others"
            headers = {"retry-after": str(self._retry_after_s)}
            raise ApiError(429, message, None, "rate_limit_exceeded", headers)

    def keep(self, tenant: bytes, by: int) -> None:
        """One connection more, or less, has a request of the tenant's under way."""
        self._kept.add(tenant, by)

    def rest(self, connection: "Connection") -> None:
        """The last that begins to rest."""
        self._resting.setdefault(connection.owner, {})[connection] = None

    def stir(self, connection: "Connection") -> None:
        """It rests no more."""
        mates = self._resting[connection.owner]
        del mates[connection]
        if not mates:
            del self._resting[connection.owner]


class Connection:
    """One that is open, and rests."""

    def __init__(self, connections: Connections, owner: bytes, close: Callable[[], None]) -> None:
        self.owner = owner
        self.close = close
        self._connections = connections
        self._tenant = b""
        self._num_requests = 0  # of tenants; the next one of a pipeline may begin before the last has cleared away
        self._is_open = True
        connections.rest(self)

    def refresh(self, owner: bytes = b"") -> None:
        """A request has come: it has rested least of all; and now we may know whose it is."""
        if self._is_open and not self._num_requests:
            self._connections.stir(self)
            self.owner = owner or self.owner
            self._connections.rest(self)

    def keep(self, tenant: bytes) -> None:
        """A request is under way; with a `tenant`, in that one's share.

        Raises:
            ApiError: 429, the tenant has its share.
        """
        if self._is_open and not self._num_requests:
            self.refresh(tenant)
            self._connections.check(tenant)
            self._connections.stir(self)
            self._tenant = tenant
            self._connections.keep(tenant, 1)
        self._num_requests += 1

    def release(self) -> None:
        """The request is over."""
        self._num_requests -= 1
        if self._is_open and not self._num_requests:
            self._connections.keep(self._tenant, -1)
            self._connections.rest(self)

    def end(self) -> None:
        """It is closed, or will be at once: its place is free. Harmless when said twice."""
        if not self._is_open:
            return
        self._is_open = False
        self._connections.num_open -= 1
        if self._num_requests:
            self._connections.keep(self._tenant, -1)
        else:
            self._connections.stir(self)


def network_of(peer: Sequence[object]) -> bytes:
    """To whom an address belongs: an IPv4 address to itself, one of IPv6 to its network of 64 bits."""
    host = str(peer[0]).partition("%")[0]
    if ":" in host:
        return socket.inet_pton(socket.AF_INET6, host)[:_NETWORK_BYTES]
    return socket.inet_pton(socket.AF_INET, host)
