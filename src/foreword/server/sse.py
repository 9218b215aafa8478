"""An answer as it is made, as server-sent events; or whole."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from foreword.server.context import SCOPE_KEY, context_of
from foreword.server.errors import ApiError, ClientGoneError, as_api_error
from foreword.server.generation import Generation, Piece
from foreword.server.ids import new_hex
from foreword.server.limits import Limits

BODY_KEY = "foreword.body"
"""Of the scope: a `BodyWriter`, where the connection has one."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventWriter(Protocol):
    """A dialect's way to write an answer as events."""

    ping: bytes
    """Sent while there is nothing to say, so that nobody between takes the connection for dead."""

    def pieces(self, pieces: Sequence[Piece]) -> bytes:
        """Events for what has come."""

    def end(self) -> bytes:
        """Events that close the answer; called once everything was written."""

    def error(self, error: ApiError) -> bytes:
        """The event of a failure after the answer has begun."""


class BodyWriter(Protocol):
    """A way round ASGI's `send` for parts of a body that has begun."""

    @property
    def is_writable(self) -> bool:
        """False while the client reads too slowly to be sent more."""
        ...

    async def begin(self, start: Callable[[], Awaitable[None]], first: bytes) -> None:
        """Let `start` send the answer's head, and send the first part with it."""
        ...

    def write(self, part: bytes) -> None:
        """Send a part; nothing when the client has gone. Until `hold`, other threads may write then."""
        ...

    def write_directly(self, make: Callable[[], bytes]) -> bool:
        """Send the part that `make` gives, from another thread; False, without making it, where that can't be now."""
        ...

    def hold(self) -> None:
        """Keep other threads from writing, once what they have begun is done."""
        ...

    async def drain(self) -> None:
        """Wait until it is writable."""
        ...


def data_event(value: object) -> bytes:
    """An event without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode() + b"\n" + data_event(value)


class EventTemplate:
    """Events that differ in one string, encoded once but for that: a token's event is little else than the token.

    `make` writes the event of a string, which has it once.
    """

    def __init__(self, make: Callable[[str], bytes]) -> None:
        mark = new_hex(16)  # nothing that a client sends can hold it
        self._before, self._after = make(mark).split(msgspec.json.encode(mark))

    def __call__(self, text: str) -> bytes:
        """The event of `text`."""
        return b"%b%b%b" % (self._before, msgspec.json.encode(text), self._after)


class EventStream(Response):
    """Sends a generation's events.

    The status is decided with the first piece, or the first ping: what fails before is an ordinary error answer.
    """

    def __init__(self, generation: Generation, writer: EventWriter, limits: Limits) -> None:
        self.status_code = 200
        self.background = None
        self._generation = generation
        self._writer = writer
        self._ping_interval_s = limits.ping_interval_s
        self._progress_interval_s = min(limits.progress_interval_s, limits.ping_interval_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until all is said or the client has gone."""
        async with self._generation.watched(receive):
            pieces = await self._generation.take(self._ping_interval_s)
            marks = [(name.encode(), value.encode()) for name, value in self._generation.account.marks().items()]
            start: Message = {"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *marks]}
            body: BodyWriter | None = scope.get(BODY_KEY)
            first = self._writer.pieces(pieces) if pieces else b""
            if body is not None and first:
                await body.begin(partial(send, start), first)
            else:
                await send(start)
                await _send_part(send, first)
            try:
                await self._send_all(pieces, send, body)
            except ClientGoneError:
                scope[SCOPE_KEY].facts["client_gone"] = True
            except Exception as error:
                failure = as_api_error(error)
                scope[SCOPE_KEY].facts["error"] = failure.code
                await _send_part(send, self._writer.error(failure))
            scope[SCOPE_KEY].facts |= facts(self._generation)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, pieces: list[Piece], send: Send, body: BodyWriter | None) -> None:
        """What follows the first pieces, which have been sent; those that come behind pings with it."""
        generation, writer = self._generation, self._writer
        if not pieces and not generation.is_over:
            pieces = await self._tell_progress(send)
            await _send_part(send, writer.pieces(pieces) if pieces else b"")
        if body is not None and pieces:
            await Relay(generation, writer, body, self._ping_interval_s).run()
        while not generation.is_over:
            pieces = await generation.take(self._ping_interval_s)
            if pieces or not generation.is_over:
                await _send_part(send, writer.pieces(pieces) if pieces else writer.ping)
        await _send_part(send, writer.end())

    async def _tell_progress(self, send: Send) -> list[Piece]:
        """Until the first pieces, which it returns: how far the prompts are, in comments, which clients skip.

        A ping comes first, and wherever nothing else was said for as long as between two.
        """
        clock = asyncio.get_running_loop().time
        await _send_part(send, self._writer.ping)
        told, said = 0, clock()
        while True:
            pieces = await self._generation.take(self._progress_interval_s)
            if pieces or self._generation.is_over:
                return pieces
            done, total = self._generation.prefilled()
            if done <= told and clock() - said < self._ping_interval_s:
                continue
            await _send_part(send, b": prefill %d/%d\n\n" % (done, total) if done > told else self._writer.ping)
            told, said = max(told, done), clock()


class Relay:
    """Passes pieces on to the connection in the very call that brings them: no task is woken for a token.

    Where only a few streams run, not even the loop is: the engine's thread writes. What comes while the client reads
    too slowly stays with the stream, which bounds it. Event loop only, but for `_pass_directly`.
    """

    def __init__(self, generation: Generation, writer: EventWriter, body: BodyWriter, ping_interval_s: float) -> None:
        self._generation = generation
        self._writer = writer
        self._body = body
        self._ping_interval_s = ping_interval_s
        self._loop = asyncio.get_running_loop()
        self._said = time.monotonic()
        self._pause = self._loop.create_future()  # done when there is something to do here but to pass on
        self._timer = self._loop.call_later(ping_interval_s, self._ping_if_silent)

    async def run(self) -> None:
        """Until all is over.

        Raises:
            ForewordError: what ended it before its time.
        """
        self._generation.call_on_news(self._pass_on)
        self._generation.call_directly(self._pass_directly)
        try:
            while True:
                self._pass_on()
                await self._pause
                if self._generation.is_over:
                    return
                await self._body.drain()
                self._pause = self._loop.create_future()
        finally:
            self._generation.call_directly(None)
            self._body.hold()
            self._generation.call_on_news(None)
            self._timer.cancel()

    def _pass_on(self) -> None:
        if self._pause.done():
            return
        try:
            self._body.hold()  # what is taken from the stream here comes before what the engine makes meanwhile
            while self._body.is_writable:
                pieces = self._generation.take_now()
                if not pieces:
                    break
                self._body.write(self._writer.pieces(pieces))
                self._said = time.monotonic()
            if self._generation.is_over or not self._body.is_writable:
                self._pause.set_result(None)
        except Exception as error:
            self._pause.set_exception(error)

    def _pass_directly(self, pieces: list[Piece]) -> bool:
        """In the engine's thread."""
        if not self._body.write_directly(lambda: self._writer.pieces(pieces)):
            return False
        self._said = time.monotonic()
        return self._generation.passed(pieces)

    def _ping_if_silent(self) -> None:
        left = self._said + self._ping_interval_s - time.monotonic()
        if left <= 0:
            left = self._ping_interval_s
            if not self._pause.done():
                self._body.write(self._writer.ping)
            self._said = time.monotonic()
        self._timer = self._loop.call_later(left, self._ping_if_silent)


async def collect(generation: Generation, request: Request) -> None:
    """Let an answer become whole; ends it when the client leaves.

    Raises:
        ForewordError: what ended it before its time.
    """
    context = context_of(request)
    try:
        async with generation.watched(request.receive):
            await generation.take()
            generation.call_directly(generation.passed)  # nobody reads pieces of what is sent whole
            while not generation.is_over:
                await generation.take()
    finally:
        context.facts |= facts(generation)


def facts(generation: Generation) -> dict[str, object]:
    """What the log tells of a generation: counts and reasons, no text."""
    account = generation.account
    return {
        "prompt_tokens": account.prompt,
        "cached_tokens": account.read,
        "written_tokens": account.written,
        "completion_tokens": account.completion,
        **({} if account.outcome is None else {"response_cache": account.outcome}),
        "finish_reasons": [a.finish_reason for output in generation.outputs for a in output.outputs],
    }


async def _send_part(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
