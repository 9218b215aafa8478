"""How a stream's events reach the connection: by the short way or ASGI's, the bytes are the same."""

import asyncio
import http.client
import json
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import StepFailedError
from foreword.core.sequence import Usage
from foreword.server.direct_body import DirectBody
from foreword.server.errors import ApiError
from foreword.server.generation import Piece
from foreword.server.sse import EventTemplate, Relay, data_event
from tests.server.conftest import LiveServer
from tests.server.wire import chat_body, completion_body, message_body, response_body

CALLS = {
    "/v1/chat/completions": (chat_body, {"max_tokens": 40, "logprobs": True}),
    "/v1/completions": (completion_body, {"max_tokens": 40, "n": 2, "echo": True}),
    "/v1/messages": (message_body, {"max_tokens": 40}),
    "/v1/responses": (response_body, {"max_output_tokens": 40}),
}
_OF_THE_DAY = re.compile(
    rb'"(id|item_id|created|created_at|completed_at|cached_tokens|\w*input_tokens)":("[^"]*"|[\d.]+)'
)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each part that was to be written by the engine's thread was."""
    written: list[bool] = []
    write = DirectBody.write_directly

    def write_noted(body: DirectBody, make: Callable[[], bytes]) -> bool:
        written.append(write(body, make))
        return written[-1]

    monkeypatch.setattr(DirectBody, "write_directly", write_noted)
    return written


def told(live: LiveServer, path: str, body: dict[str, Any], version: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
    connection._http_vsn, connection._http_vsn_str = version, f"HTTP/{version // 10}.{version % 10}"  # type: ignore[attr-defined]
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json", "host": "localhost"})
    answer = connection.getresponse()
    assert (answer.getheader("transfer-encoding") == "chunked") == (version == 11)
    data = answer.read()
    connection.close()
    return data


@pytest.mark.parametrize("path", CALLS)
def test_the_short_way_and_asgis_tell_the_same(server: LiveServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = counted(monkeypatch)
    runner = server.service.loaded.engine._runner
    execute = runner.execute

    def slow(*args: Any) -> Any:
        time.sleep(0.003)  # a step as long as a real model's: the loop has written what came before
        return execute(*args)

    monkeypatch.setattr(runner, "execute", slow)
    make, fields = CALLS[path]
    body = make("tell me", stream=True, temperature=0, cache_salt="ways", **fields)
    told(server, path, body, 11)  # so that both read the prompt from the cache

    short, long = (_OF_THE_DAY.sub(b"", told(server, path, body, version)) for version in (11, 10))

    assert short == long
    assert short.count(b"data:") > 20
    assert any(written), "otherwise only one way was gone"


@given(st.text(), st.text())
def test_a_template_writes_what_the_encoder_would(model: str, text: str) -> None:
    def make(text: str) -> bytes:
        return data_event({"model": model, "choices": [{"text": text, "logprobs": None}]})

    assert EventTemplate(make)(text) == make(text)


def piece(text: str) -> Piece:
    return Piece(0, 0, text, (1,), [], None, None, Usage())


class Source:
    """A generation whose pieces the test gives."""

    def __init__(self) -> None:
        self.waiting: list[Piece] = []
        self.has_ended = False
        self.error: Exception | None = None
        self.news: Callable[[], None] | None = None
        self.shortcut: Callable[[list[Piece]], bool] | None = None
        self.num_passed = 0

    @property
    def is_over(self) -> bool:
        return self.has_ended and not self.waiting and self.error is None

    def call_on_news(self, act: Callable[[], None] | None) -> None:
        self.news = act

    def call_directly(self, act: Callable[[list[Piece]], bool] | None) -> None:
        self.shortcut = act

    def passed(self, pieces: list[Piece]) -> bool:
        self.num_passed += len(pieces)
        return True

    def take_now(self) -> list[Piece]:
        if not self.waiting and self.error is not None:
            raise self.error
        taken, self.waiting = self.waiting, []
        return taken

    def give(self, *texts: str, ends: bool = False, error: Exception | None = None) -> None:
        self.waiting += map(piece, texts)
        self.has_ended, self.error = ends or error is not None, error
        if self.news is not None:
            self.news()


class Reader:
    """A connection that can be full."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_lent = False
        self.room = asyncio.Event()
        self.room.set()

    @property
    def is_writable(self) -> bool:
        return self.room.is_set()

    def write(self, part: bytes) -> None:
        assert self.is_writable
        self.parts.append(part)
        self.is_lent = True

    def write_directly(self, make: Callable[[], bytes]) -> bool:
        if self.is_lent:
            self.parts.append(make())
        return self.is_lent

    def hold(self) -> None:
        self.is_lent = False

    async def drain(self) -> None:
        await self.room.wait()


class Writer:
    """Pieces as their text."""

    ping = b"ping"

    def pieces(self, pieces: list[Piece]) -> bytes:
        return msgspec.json.encode([piece.text for piece in pieces])

    def end(self) -> bytes:
        return b"end"

    def error(self, error: ApiError) -> bytes:
        return b"error"


def relayed(play: Callable[[Source, Reader], Any], ping_interval_s: float = 60) -> list[bytes]:
    async def run() -> list[bytes]:
        source, reader, failures = Source(), Reader(), list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
        relay = Relay(source, Writer(), reader, ping_interval_s)  # type: ignore[arg-type]  # as much as it needs
        task = asyncio.create_task(relay.run())
        await asyncio.sleep(0)
        await play(source, reader)
        try:
            async with asyncio.timeout(10):
                await task
        finally:
            assert not failures, "what fails in a timer reaches nobody else"
        assert source.news is None
        assert source.shortcut is None
        assert not reader.is_lent, "what comes behind is written by others"
        return reader.parts

    return asyncio.run(run())


def test_a_piece_is_written_in_the_call_that_brings_it() -> None:
    async def play(source: Source, reader: Reader) -> None:
        source.give("a")
        assert reader.parts == [b'["a"]']
        source.give("b", "c")
        assert reader.parts[1:] == [b'["b","c"]']
        source.give(ends=True)

    assert len(relayed(play)) == 2


def test_pieces_go_round_the_loop_once_it_has_written_all_that_came_before() -> None:
    async def play(source: Source, reader: Reader) -> None:
        assert source.shortcut is not None
        assert not source.shortcut([piece("early")]), "the answer's first parts may still be with the transport"
        source.give("a")
        assert source.shortcut([piece("b")])
        source.give("c")
        assert source.shortcut([piece("d")])
        assert source.num_passed == 2
        source.give("e", ends=True)

    assert relayed(play) == [b'["a"]', b'["b"]', b'["c"]', b'["d"]', b'["e"]']


def test_what_comes_while_the_client_does_not_read_stays_with_the_stream() -> None:
    async def play(source: Source, reader: Reader) -> None:
        source.give("a")
        reader.room.clear()
        for text in "bcd":
            source.give(text)
            await asyncio.sleep(0)
        assert (len(reader.parts), len(source.waiting)) == (1, 3)
        reader.room.set()
        await asyncio.sleep(0.01)
        assert reader.parts[1:] == [b'["b","c","d"]']
        source.give("e", ends=True)

    assert relayed(play)[2:] == [b'["e"]']


def test_all_that_came_before_an_error_is_written_before_it_is_raised() -> None:
    async def play(source: Source, reader: Reader) -> None:
        reader.room.clear()
        source.give("a", error=StepFailedError("no"))
        await asyncio.sleep(0.01)
        assert reader.parts == []
        reader.room.set()
        await asyncio.sleep(0.01)
        assert reader.parts == [b'["a"]']

    with pytest.raises(StepFailedError):
        relayed(play)


def test_silence_is_filled_with_pings_and_a_full_connection_is_not() -> None:
    async def play(source: Source, reader: Reader) -> None:
        async with asyncio.timeout(10):
            while len(reader.parts) < 3:
                await asyncio.sleep(0.005)
        reader.room.clear()
        source.give("a")
        await asyncio.sleep(0.05)  # a ping now would be refused by the reader
        reader.room.set()
        source.give(ends=True)

    parts = relayed(play, ping_interval_s=0.01)
    assert parts[:3] == [b"ping"] * 3
    assert b'["a"]' in parts
