"""The body of one answer, written in parts where they arise: on the loop, or in the engine's thread.

A transport belongs to the loop. Its socket is lent to other threads from the end of one write of the loop's to the
beginning of the next thing that the loop does with it, and only while the transport itself has nothing left to send.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

from uvicorn.protocols.http.h11_impl import RequestResponseCycle


class DirectBody:
    """A `BodyWriter` around the layers of an ASGI `send`.

    Only for HTTP/1.1 without a content-length, where each part is a chunk, and between the answer's start and its end:
    the bytes are those that `send` would write. Event loop only, but for `write_directly`.
    """

    def __init__(self, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> None:
        self._cycle = cycle
        self._loop = loop
        self._transport = cycle.transport
        self._descriptor: int = cycle.transport.get_extra_info("socket").fileno()
        self._lock = threading.Lock()  # held while another thread writes: for as long as the system takes bytes
        self._is_lent = False
        self._is_lost = False
        self._rest = b""  # of a part that the system took only the beginning of
        self._head = b""  # of the answer, to be sent with its first part

    @property
    def is_writable(self) -> bool:
        """False while the client reads too slowly to be sent more."""
        return not self._cycle.flow.write_paused

    async def begin(self, start: Callable[[], Awaitable[None]], first: bytes) -> None:
        """Let `start` send the answer's head by ASGI, and send the first part with it, in one call of the system.

        Otherwise the client is woken for the head, on a core that the next step wants, and once more for the part.
        """
        held = _HeldWrites()
        self._cycle.transport = cast(asyncio.Transport, held)
        try:
            await start()
        finally:
            self._cycle.transport = self._transport
        self._head = held.data
        self.write(first)

    def write(self, part: bytes) -> None:
        """Send a part; nothing when the client has gone. Until `hold`, other threads may write then."""
        self.hold()
        if not part or self._cycle.disconnected or self._transport.is_closing():
            return
        rest, self._head = self._head + _chunk(part), b""
        if not self._transport.get_write_buffer_size():
            rest = self._send(rest)
        if rest:
            self._transport.write(rest)
        self._is_lent = not (self._is_lost or self._transport.get_write_buffer_size())

    def write_directly(self, make: Callable[[], bytes]) -> bool:
        """Send the part that `make` gives, from another thread; False, without making it, where that can't be now."""
        with self._lock:
            if not self._is_lent:
                return False
            part = make()
            self._rest = self._send(_chunk(part)) if part else b""
            if self._rest:
                self._is_lent = False
                with suppress(RuntimeError):  # the loop has ended: nobody reads any more
                    self._loop.call_soon_threadsafe(self.hold)
        return True

    def hold(self) -> None:
        """Keep other threads from writing, once what they have begun is done."""
        with self._lock:
            self._is_lent = False
            rest, self._rest = self._rest, b""
        if rest:
            self._transport.write(rest)

    def lose(self) -> None:
        """The connection is gone: its descriptor will soon be another's."""
        with self._lock:
            self._is_lost = True
            self._is_lent = False
            self._rest = b""

    async def drain(self) -> None:
        """Wait until it is writable."""
        await self._cycle.flow.drain()

    def _send(self, data: bytes) -> bytes:
        """What the system would not take; where it fails, all: the transport is told the same, and ends."""
        try:
            return data[os.write(self._descriptor, data) :]
        except OSError:
            return data


class _HeldWrites:
    """In a transport's place while an answer's head is made."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)
