"""Connections beyond the bound: each is told so, in one answer that costs no reading and is the same for all."""

import asyncio
import functools
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from foreword.server.errors import ApiError, common_body

LINGER_S = 2.0
"""From the connection to its end."""
MAX_LINGERING = 256
MAX_DROPPED_BYTES = 1 << 20
"""Of one request that nobody reads."""


class Door:
    """Turns connections away.

    At most `MAX_LINGERING` are kept a while, so that what they still send doesn't undo the answer; of more, each is
    answered and closed at once.
    """

    def __init__(self, retry_after_s: int, on_refused: Callable[[], None]) -> None:
        self._on_refused = on_refused
        self._retry_after_s = retry_after_s
        self._lingering: set[TurnedAway] = set()

    @property
    def num_lingering(self) -> int:
        """Connections that have been turned away and are still open."""
        return len(self._lingering)

    def shut(self) -> None:
        """Close those that linger."""
        for connection in list(self._lingering):
            connection.close()

    def turn_away(self, transport: asyncio.Transport, num_open: int) -> None:
        """Answer a new connection, as there are so many, and close it."""
        self._on_refused()
        answer = _answer(num_open, self._retry_after_s)
        if len(self._lingering) >= MAX_LINGERING:
            transport.set_protocol(asyncio.Protocol())
            transport.write(answer)
            transport.close()
        else:
            transport.set_protocol(TurnedAway(transport, answer, self._lingering))


class TurnedAway(asyncio.Protocol):
    """One connection that is answered with its first bytes, for some clients take an answer only to what they asked.

    What it sends is dropped: unread bytes would make the system reset the connection, and the answer could be lost.
    """

    def __init__(self, transport: asyncio.Transport, answer: bytes, lingering: set["TurnedAway"]) -> None:
        self._transport = transport
        self._answer = answer
        self._lingering = lingering
        self._num_left = MAX_DROPPED_BYTES
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._end)
        lingering.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        self._num_left -= len(data)
        if self._num_left < 0:
            self._end()
        elif self._answer:
            self._tell()
            self._transport.write_eof()

    def eof_received(self) -> None:
        """The client has said all, or has seen the answer's end; the transport closes itself."""
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._timer.cancel()
        self._lingering.discard(self)

    def close(self) -> None:
        """Close it at once."""
        self._transport.abort()

    def _tell(self) -> None:
        answer, self._answer = self._answer, b""
        if answer:
            self._transport.write(answer)

    def _end(self) -> None:
        self._tell()
        self._transport.close()


@functools.lru_cache(maxsize=1)
def _answer(num_open: int, retry_after_s: int) -> bytes:
    told = f"{num_open} connections are open, as many as this server takes; try again later"
    return whole_answer(ApiError(503, told, None, "too_many_connections", {"retry-after": str(retry_after_s)}))


def whole_answer(error: ApiError) -> bytes:
    """The last of a connection, to a request that nobody has read."""
    body = msgspec.json.encode(common_body(error))
    head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    head += "".join([f"{name}: {value}\r\n" for name, value in error.headers.items()])
    return head.encode() + b"connection: close\r\n\r\n" + body
