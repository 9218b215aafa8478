"""What a client reads of a connection: every byte, in order, and the time at which it came."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.load import inbox as module
from foreword.load.inbox import Inbox


class Wire(asyncio.Transport):
    """A connection on which the test says what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False
        ticks = count(1)
        self.inbox = Inbox(lambda: float(next(ticks)))  # each arrival a second after the one before
        self.inbox.connection_made(self)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def give(self, data: bytes) -> None:
        for start in range(0, len(data), 1 << 16):
            part = data[start : start + (1 << 16)]
            self.inbox.get_buffer(-1)[: len(part)] = part
            self.inbox.buffer_updated(len(part))


def play(scene: Callable[[Wire], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await scene(Wire())

    asyncio.run(run())


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.lists(st.integers(1, 9), min_size=1), st.booleans())
def test_each_part_comes_with_the_time_of_its_last_byte(sizes: list[int], reads: list[int], is_patient: bool) -> None:
    data = bytes(range(sum(sizes)))
    when = [float(number) for number, size in enumerate(sizes, 1) for _ in range(size)]

    async def scene(wire: Wire) -> None:
        wire.inbox.is_patient = is_patient
        rest = data
        for size in sizes:
            wire.give(rest[:size])
            rest = rest[size:]
        taken = 0
        for size in reads:
            if taken + size > len(data):
                break
            assert await wire.inbox.exactly(size) == data[taken : taken + size]
            taken += size
            assert wire.inbox.arrived_s == when[taken - 1]

    play(scene)


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"x" * (module.MUCH + 1)])
def test_a_patient_reader_is_not_woken_before_an_end_or_much(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 600)

    async def scene(wire: Wire) -> None:
        wire.inbox.is_patient = True
        reading = asyncio.ensure_future(wire.inbox.some(1 << 20))
        for _ in range(3):
            await asyncio.sleep(0)
            wire.give(b"a")
        await asyncio.sleep(0)
        assert not reading.done()
        wire.give(end)
        assert await reading == b"aaa" + end

    play(scene)


def test_a_patient_reader_waits_no_longer_than_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)

    async def scene(wire: Wire) -> None:
        wire.inbox.is_patient = True
        reading = asyncio.ensure_future(wire.inbox.some(10))
        await asyncio.sleep(0)
        wire.give(b"an end unlike others")
        assert await reading == b"an end unl"

    play(scene)


def test_an_end_wakes_a_patient_reader_and_is_told_once_all_was_taken() -> None:
    async def scene(wire: Wire) -> None:
        wire.inbox.is_patient = True
        reading = asyncio.ensure_future(wire.inbox.exactly(3))
        await asyncio.sleep(0)
        wire.give(b"ab")
        wire.inbox.eof_received()
        with pytest.raises(asyncio.IncompleteReadError):
            await reading
        assert await wire.inbox.some(10) == b"ab"
        assert await wire.inbox.some(10) == b""

    play(scene)


def test_a_reset_is_raised() -> None:
    async def scene(wire: Wire) -> None:
        wire.inbox.connection_lost(ConnectionResetError())
        with pytest.raises(ConnectionResetError):
            await wire.inbox.line(100)
        with pytest.raises(ConnectionResetError):
            await wire.inbox.some(100)

    play(scene)


def test_what_nobody_takes_is_bounded_and_what_is_wanted_comes() -> None:
    async def scene(wire: Wire) -> None:
        wire.give(b"x" * (module.TOO_MUCH + 1))
        assert wire.is_paused
        reading = asyncio.ensure_future(wire.inbox.exactly(3 * module.TOO_MUCH))
        await asyncio.sleep(0)
        while not reading.done():
            assert not wire.is_paused
            wire.give(b"x" * 50_000)
            await asyncio.sleep(0)
        assert not wire.is_paused

    play(scene)


def test_a_line_has_a_bound() -> None:
    async def scene(wire: Wire) -> None:
        wire.give(b"short\r\n" + b"x" * 20)
        assert await wire.inbox.line(10) == b"short"
        assert await wire.inbox.line(10) is None

    play(scene)
