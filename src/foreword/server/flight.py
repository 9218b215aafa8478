"""One generation with any number of readers: requests that ask the same at the same time are computed once.

    engine ──▶ Flight: takes every piece as it comes, and keeps them ──▶ FlightReader, one a client, at its own pace

Nobody leads: a client that leaves takes nobody's answer with it, and with the last of them the engine's request ends. A
reader waits for pieces or for the end, and a flight always ends. When its step fails, readers that have shown nothing
yet go on with a new flight; the others, and the one that asked first, are told as if they had asked alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from foreword.core.errors import StepFailedError, UnavailableError
from foreword.llm.outputs import RequestOutput
from foreword.server.account import Reuse
from foreword.server.errors import ClientGoneError
from foreword.server.generation import Piece, PieceStream


class Flight:
    """Reads a stream to its end for all who want it. Needs a running event loop.

    `on_end` is awaited once all has come, when readers know of it already; not when the server stops.
    """

    def __init__(
        self,
        outputs: Sequence[RequestOutput],
        stream: PieceStream,
        on_end: Callable[["Flight"], Awaitable[None]],
    ) -> None:
        self.outputs = outputs
        self.pieces: list[Piece] = []
        self.error: Exception | None = None
        self.has_ended = False
        self._is_left = False
        self._stream = stream
        self._on_end = on_end
        self._readers: dict[FlightReader, None] = {}
        self._task = asyncio.get_running_loop().create_task(self._read())

    @property
    def can_board(self) -> bool:
        """True while one more may read along: nothing has failed, and not everybody has left."""
        return self.error is None and not self._is_left

    @property
    def is_complete(self) -> bool:
        """True when every answer has ended by itself: by its own words or at its length."""
        reasons = [answer.finish_reason for output in self.outputs for answer in output.outputs]
        return self.has_ended and self.error is None and all(reason in ("stop", "length") for reason in reasons)

    def board(self, reader: "FlightReader") -> None:
        """One more reads along, from the first piece."""
        self._readers[reader] = None

    def leave(self, reader: "FlightReader") -> None:
        """One reads no more; when it was the last, what still runs ends."""
        self._readers.pop(reader, None)
        if not self._readers and not self.has_ended:
            self._is_left = True
            self._stream.close(ClientGoneError("everybody who asked has left"))

    async def _read(self) -> None:
        try:
            while not self._stream.is_over:
                self.pieces += await self._stream.take()
                self._wake()
        except Exception as error:
            self.error = error
        except asyncio.CancelledError:
            self.error = UnavailableError("the server is shutting down")
            raise
        finally:
            self.has_ended = True
            self._wake()
        await self._on_end(self)

    def _wake(self) -> None:
        for reader in list(self._readers):
            reader.wake()


class FlightReader:
    """One client's view of a flight; a stream of pieces like the engine's own."""

    def __init__(
        self,
        flight: Flight,
        outputs: list[RequestOutput],
        reuse: Reuse,
        *,
        hand_over: Callable[[], tuple[Flight, bool]] | None = None,
    ) -> None:
        """Read a flight from its first piece.

        `outputs` is the reader's own list, set anew when it goes on with another flight; `hand_over` gives that flight,
        and whether it is one that others began. Without it the reader is the one that asked first.
        """
        self._flight = flight
        self._outputs = outputs
        self._reuse = reuse
        self._hand_over = hand_over
        self._position = 0
        self._error: Exception | None = None
        self.on_news: Callable[[], None] | None = None
        self.shortcut: Callable[[list[Piece]], bool] | None = None  # never called: others read along
        self._waiter: asyncio.Future[None] | None = None
        flight.board(self)

    @property
    def is_over(self) -> bool:
        """True once everything was taken and nothing more will come; False while an error is still to be raised."""
        flight = self._flight
        return flight.has_ended and not self._has_news and flight.error is None and self._error is None

    async def take(self, timeout_s: float | None = None) -> list[Piece]:
        """All that has come, waiting for the first of it; nothing when `timeout_s` passed, or at the end.

        Raises:
            ForewordError: what ended the flight, or this reader, before its time.
        """
        if not self._has_news and not self._flight.has_ended and self._error is None:
            await self._wait(timeout_s)
        return self.take_now()

    def take_now(self) -> list[Piece]:
        """As `take`, without waiting."""
        if self._error is not None:
            raise self._error
        if self._has_news:
            pieces = self._flight.pieces[self._position :]
            self._position += len(pieces)
            return [self._as_reused(piece) for piece in pieces] if self._reuse.is_reused else pieces
        if self._flight.error is not None:
            self._go_on(self._flight.error)
        return []

    def close(self, error: Exception | None = None) -> None:
        """Read no more."""
        if self._error is None and not self.is_over:
            self._error = error or ClientGoneError("the client has left")
            self._flight.leave(self)
            self.wake()

    def wake(self) -> None:
        """Something has come, or the end."""
        if self.on_news is not None:
            self.on_news()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def _has_news(self) -> bool:
        return self._position < len(self._flight.pieces)

    def _go_on(self, error: Exception) -> None:
        if self._hand_over is None or self._position or not isinstance(error, StepFailedError):
            raise error
        hand_over, self._hand_over = self._hand_over, None
        flight, is_others = hand_over()
        self._flight = flight
        self._outputs[:] = flight.outputs
        self._reuse.outcome = "shared" if is_others else "miss"
        if is_others:
            self._hand_over = hand_over
        flight.board(self)

    def _as_reused(self, piece: Piece) -> Piece:
        total = piece.usage.prompt_tokens
        return replace(piece, usage=replace(piece.usage, cached_tokens=total, written_tokens=0, computed_tokens=0))

    async def _wait(self, timeout_s: float | None) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiter
        except TimeoutError:
            pass
        finally:
            self._waiter = None


class StoredStream:
    """A stored answer as a stream: every piece is there already."""

    BATCH = 256
    """Pieces given at once, so that a long answer is written as the client reads it."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.on_news: Callable[[], None] | None = None  # never called: there is no more than can be taken
        self.shortcut: Callable[[list[Piece]], bool] | None = None  # nor this
        self._pieces = pieces
        self._position = 0
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """True once everything was taken."""
        return self._position >= len(self._pieces) and self._error is None

    async def take(self, timeout_s: float | None = None) -> list[Piece]:
        """The next pieces, without waiting.

        Raises:
            ForewordError: the client has left.
        """
        return self.take_now()

    def take_now(self) -> list[Piece]:
        """As `take`."""
        if self._error is not None:
            raise self._error
        pieces = list(self._pieces[self._position : self._position + self.BATCH])
        self._position += len(pieces)
        return pieces

    def close(self, error: Exception | None = None) -> None:
        """Give no more."""
        if not self.is_over:
            self._error = error or ClientGoneError("the client has left")
