"""A connection for one answer at a time: its thread waits in the system for it, and a loop wakes nobody.

For measuring what a server adds to an engine on the same cores: a token costs this client a call of the system and a
look at the clock, where a loop costs three calls and some fifty of Python.
"""

import asyncio
import socket
import struct
from collections.abc import Callable

from foreword.core.errors import InvalidRequestError
from foreword.load.inbox import Inbox
from foreword.load.wire import Connection, Endpoint

TIMEOUT_S = 120


async def open_blocking(endpoint: Endpoint, clock: Callable[[], float]) -> Connection:
    """Connect; for a `Client` with one call under way at a time, to a server whose chunked answers have no trailers.

    Raises:
        OSError: nobody listens there.
        InvalidRequestError: by TLS.
    """
    if endpoint.is_tls:
        raise InvalidRequestError("url", "http, for one answer at a time", "https")
    connection = socket.create_connection((endpoint.host, endpoint.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TIMEOUT_S, 0))  # costs no call
    return Connection(_BlockingInbox(connection, clock))


class _BlockingInbox(Inbox):
    """Reads when somebody wants more than there is."""

    def __init__(self, connection: socket.socket, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._connection = connection
        self.transport = _Transport(connection)

    async def _more(self) -> None:
        if self._is_over:
            raise self._error or asyncio.IncompleteReadError(b"", None)
        while True:
            try:
                num_bytes = self._connection.recv_into(self._view)
            except BlockingIOError:
                raise TimeoutError from None
            if not num_bytes:
                return self.eof_received()
            self.buffer_updated(num_bytes)
            if not self.is_patient or self.is_worth_waking:
                return None


class _Transport(asyncio.Transport):
    """As much of one as a connection needs."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """All of it."""
        self._connection.sendall(data)

    def pause_reading(self) -> None:
        """Nothing is read that nobody wants."""

    def resume_reading(self) -> None:
        """Nor is this needed."""

    def close(self) -> None:
        """End it."""
        self._connection.close()

    def abort(self) -> None:
        """End it without a goodbye."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()
