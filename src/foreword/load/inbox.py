"""What has come on a connection, and when: taken when it is wanted, not a piece at a time.

A client that reads each token as it comes takes more of the cores it shares with the server than the server's own web
side. So a patient reader is woken when an answer may have ended, or much has come, or some time has passed; what it
takes then still tells when each part came.
"""

import asyncio
from collections import deque
from collections.abc import Callable

PATIENCE_S = 0.1
MUCH = 64 << 10
TOO_MUCH = 1 << 20
"""Bytes nobody has taken yet; more are left to the system until some are, or somebody waits for more."""
_LAST_CHUNK = b"0\r\n\r\n"


class Inbox(asyncio.BufferedProtocol):
    """One connection's. `clock` tells when something comes."""

    transport: asyncio.Transport

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._view = memoryview(bytearray(MUCH))
        self._data = bytearray()
        self._num_come = self._num_taken = 0
        self._arrivals: deque[tuple[int, float]] = deque()  # how many bytes had come in all, and when
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = self._is_over = False
        self._error: Exception | None = None
        self.is_patient = False
        self.arrived_s = 0.0  # when the last of what was taken came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the system puts what comes."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """So much has come."""
        self._data += self._view[:nbytes]
        self._num_come += nbytes
        self._arrivals.append((self._num_come, self._clock()))
        if len(self._data) > TOO_MUCH:
            self._is_paused = True
            self.transport.pause_reading()
        if self._waiter is None:
            return
        if not self.is_patient or self.is_worth_waking:
            self._wake()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._wake)

    @property
    def is_worth_waking(self) -> bool:
        """True when a patient reader should look: an answer may have ended, or much has come."""
        return self._data.endswith(_LAST_CHUNK) or len(self._data) > MUCH

    def eof_received(self) -> None:
        """The server says no more; the transport closes itself."""
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._end(exc)

    async def head(self, longest: int) -> bytes | None:
        """All up to an empty line, and that, where it has come at once; None where lines have to be taken one by one.

        Raises:
            OSError, asyncio.IncompleteReadError: the connection ended before.
        """
        if not self._data:
            await self._more()
        end = self._data.find(b"\r\n\r\n", 0, longest)
        if end < 0:
            return None
        counts = [self._data.count(part, 0, end) for part in (b"\r\n", b"\r", b"\n")]
        return self._take(end + 4) if max(counts) == counts[0] else None  # else a line ends otherwise

    def come(self, count: int) -> bytes | None:
        """So much, if it has come."""
        return self._take(count) if len(self._data) >= count else None

    async def line(self, longest: int) -> bytes | None:
        """A line without its end; None when it is longer than may be.

        Raises:
            OSError, asyncio.IncompleteReadError: the connection ended before.
        """
        searched = 0
        while (end := self._data.find(b"\n", searched)) < 0:
            searched = len(self._data)
            if searched > longest:
                return None
            await self._more()
        return self._take(end + 1).rstrip(b"\r\n") if end <= longest else None

    async def exactly(self, count: int) -> bytes:
        """So many bytes; raises as `line`."""
        while len(self._data) < count:
            await self._more()
        return self._take(count)

    async def some(self, most: int) -> bytes:
        """What there is; nothing at the end in good order. Raises as `line`."""
        if not self._data and not (self._is_over and self._error is None):
            try:
                await self._more()
            except asyncio.IncompleteReadError:
                return b""
        return self._take(min(most, len(self._data)))

    async def _more(self) -> None:
        if self._is_over:
            raise self._error or asyncio.IncompleteReadError(b"", None)
        self._go_on()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _take(self, count: int) -> bytes:
        taken = bytes(self._data[:count])
        del self._data[:count]
        self._num_taken += count
        while self._arrivals and self._arrivals[0][0] < self._num_taken:
            self._arrivals.popleft()
        if self._arrivals:
            self.arrived_s = self._arrivals[0][1]
        if len(self._data) <= MUCH:
            self._go_on()
        return taken

    def _go_on(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def _end(self, error: Exception | None) -> None:
        self._error = self._error or error
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
