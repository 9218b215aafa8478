"""A connection that two threads write to, one at a time: every part whole, once, and in its order."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from foreword.server.direct_body import DirectBody

ResultT = TypeVar("ResultT")


class Protocol(asyncio.Protocol):
    """As much of a connection as a body needs, in place of uvicorn's cycle too."""

    disconnected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.flow = FlowControl(transport)
        self.body = DirectBody(self, asyncio.get_running_loop())  # type: ignore[arg-type]  # as much as it needs

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.disconnected = True
        self.body.lose()


async def connected() -> tuple[Protocol, socket.socket]:
    """A connection and its other end, with little room between."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setblocking(False)
    protocol = Protocol()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, ours)
    return protocol, theirs


def parts_of(data: bytes) -> list[bytes]:
    """What chunks hold; fails where one is torn."""
    parts = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        parts.append(data[:length])
        data = data[length + 2 :]
    return parts


async def read_slowly(theirs: socket.socket, seed: int) -> bytes:
    """All that comes, with pauses in which the connection fills."""
    loop, rng, data = asyncio.get_running_loop(), random.Random(seed), bytearray()
    while part := await loop.sock_recv(theirs, rng.choice([50, 1000, 20_000])):
        data += part
        if rng.random() < 0.3:
            await asyncio.sleep(rng.choice([0, 0.001]))
    return bytes(data)


def in_a_thread(work: Callable[[], ResultT]) -> "asyncio.Future[ResultT]":
    return asyncio.get_running_loop().run_in_executor(None, work)


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_two_threads_come_whole_and_in_order(seed: int) -> None:
    """As in a server: the loop writes what the other thread could not, and pings of its own between."""
    rng, direct = random.Random(seed), 0
    parts = [b"%d " % number * rng.choice([1, 10, 500]) for number in range(600)]

    async def scene() -> bytes:
        protocol, theirs = await connected()
        loop, body = asyncio.get_running_loop(), protocol.body

        def write(part: bytes, written: threading.Event) -> None:
            body.write(part)
            written.set()

        def make() -> None:
            nonlocal direct
            for part in parts:
                if body.write_directly(lambda part=part: part):  # type: ignore[misc]  # of this round
                    direct += 1
                    continue
                written = threading.Event()
                loop.call_soon_threadsafe(write, part, written)
                written.wait()

        reading = asyncio.create_task(read_slowly(theirs, seed))
        making = in_a_thread(make)
        while not making.done():
            body.write(b"ping")
            await asyncio.sleep(rng.choice([0, 0.002]))
        await making
        body.hold()
        protocol.transport.close()
        data = await reading
        theirs.close()
        return data

    data = asyncio.run(asyncio.wait_for(scene(), 60))

    assert [part for part in parts_of(data) if part != b"ping"] == parts
    assert 0 < direct < len(parts), "both have written"


def test_a_part_that_the_system_takes_half_of_is_ended_before_whatever_the_loop_writes_next() -> None:
    async def scene() -> bytes:
        protocol, theirs = await connected()
        body = protocol.body
        body.write(b"first")
        assert await in_a_thread(lambda: body.write_directly(lambda: b"x" * 100_000))
        body.hold()  # before the loop's own turn for it
        protocol.transport.write(b"4\r\nlast\r\n")
        assert not body.write_directly(lambda: b"never")
        protocol.transport.close()
        data = await read_slowly(theirs, 0)
        theirs.close()
        return data

    assert parts_of(asyncio.run(scene())) == [b"first", b"x" * 100_000, b"last"]


def test_a_lost_connection_is_never_written_to_again() -> None:
    """Its descriptor may be another client's by then."""

    async def scene() -> None:
        protocol, theirs = await connected()
        body = protocol.body
        body.write(b"first")
        protocol.transport.abort()
        while not protocol.disconnected:
            await asyncio.sleep(0)

        def never() -> Any:
            pytest.fail("made for nobody")

        assert not body.write_directly(never)
        body.write(b"more")
        assert not body.write_directly(never)
        assert theirs.recv(100) == b"5\r\nfirst\r\n"
        assert theirs.recv(100) == b""
        theirs.close()

    asyncio.run(scene())


def test_a_part_for_which_there_is_no_room_behind_the_loops_end_is_nobodys() -> None:
    async def scene() -> None:
        protocol, theirs = await connected()
        ended = asyncio.new_event_loop()
        ended.close()
        body = DirectBody(protocol, ended)  # type: ignore[arg-type]  # as much as it needs
        body.write(b"first")
        assert body.write_directly(lambda: b"x" * 100_000)
        assert not body.write_directly(lambda: b"never")
        protocol.transport.abort()
        theirs.close()
        await asyncio.sleep(0)

    asyncio.run(scene())


def test_a_connection_whose_transport_has_more_to_send_is_not_lent() -> None:
    async def scene() -> None:
        protocol, theirs = await connected()
        body = protocol.body
        body.write(b"x" * 100_000)
        assert not body.write_directly(lambda: b"too early")
        while protocol.transport.get_write_buffer_size():
            await asyncio.get_running_loop().sock_recv(theirs, 10_000)
        body.write(b"next")
        assert body.write_directly(lambda: b"now")
        protocol.transport.close()
        await asyncio.sleep(0)
        theirs.close()

    asyncio.run(scene())


def test_a_head_goes_with_the_first_part_behind_what_the_transport_still_has() -> None:
    async def scene() -> bytes:
        protocol, theirs = await connected()
        transport = protocol.transport

        async def start() -> None:
            protocol.transport.write(b"6\r\nhe")
            protocol.transport.write(b"ad: \r\n")

        transport.write(b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000))
        await protocol.body.begin(start, b"first")
        assert protocol.transport is transport
        protocol.body.write(b"second")
        transport.close()
        data = await read_slowly(theirs, 0)
        theirs.close()
        return data

    assert parts_of(asyncio.run(scene())) == [b"x" * 100_000, b"head: ", b"first", b"second"]
