"""What a server process holds (R-20, R-15): after a storm of every kind of client as many descriptors and threads as
before it."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.profile import DEEP
from tests.server.crowd import Caller, p95
from tests.server.process import ServerProcess, serving
from tests.server.test_streams import CALLS, limit
from tests.server.wire import completion_body, send

pytestmark = [pytest.mark.alone, pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")]


async def client(port: int, rng: random.Random) -> None:
    """One that reads all, leaves somewhere, resets, sends garbage, or asks for what is refused."""
    path = rng.choice(list(CALLS))
    fields = {"stream": rng.random() < 0.5, **limit(path, rng.randint(1, 60))}
    caller = await Caller.ask(port, path, CALLS[path](f"number {rng.random()}", **fields))
    what = rng.randrange(5)
    if what == 0:
        await caller.rest()
    elif what == 1:
        await asyncio.sleep(rng.random() * 0.05)
        caller.leave(by_reset=rng.random() < 0.5)
    elif what == 2:
        caller.leave(by_reset=True)
        bad = await Caller.ask(port, path, rng.randbytes(50))
        await bad.rest()
    elif what == 3:
        refused = await Caller.ask(port, path, CALLS[path]("x" * 5000))
        await refused.rest()
        caller.leave(by_reset=False)
    else:
        await caller.head()
        caller.leave(by_reset=True)


async def storm(port: int, count: int, at_once: int, seed: int) -> None:
    rng, turns = random.Random(seed), asyncio.Semaphore(at_once)

    async def one() -> None:
        async with turns:
            await client(port, rng)

    await asyncio.gather(*(one() for _ in range(count)))


def settle(server: ServerProcess) -> tuple[int, int]:
    """Descriptors and threads, once nothing runs and no connection is left."""
    end = time.monotonic() + 60
    while server.gauge("vllm:num_requests_running") or server.gauge("vllm:num_requests_waiting"):
        assert time.monotonic() < end
        time.sleep(0.05)
    found = (0, 0)
    while (now := (server.num_descriptors(), server.num_threads())) != found:
        found = now
        time.sleep(0.3)
    return found


def check_order(server: ServerProcess, count: int) -> None:
    asyncio.run(storm(server.port, 40, 20, seed=1))  # starts whatever starts at first use
    before = settle(server)

    asyncio.run(storm(server.port, count, 40, seed=2))

    assert settle(server) == before
    assert send(server.port, "GET", "/health").status == 200


def test_descriptors_and_threads_are_as_many_as_before(tiny: str) -> None:
    with serving(tiny, "--kv-memory", "4MiB") as server:
        check_order(server, 200)


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="long")
def test_descriptors_and_threads_are_as_many_as_before_5000_clients(tiny: str) -> None:
    with serving(tiny, "--kv-memory", "4MiB") as server:
        check_order(server, 5000)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BEGINNINGS = (b"", HEAD, HEAD + b"Content-Length: 1000\r\n\r\n{")  # silent, within its head, within its body


async def drip(port: int, beginning: bytes) -> None:
    """A byte every ten seconds, until the server has had enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(beginning)
    end = asyncio.create_task(reader.read())
    try:
        while not (await asyncio.wait([end], timeout=10))[0]:
            writer.write(b" ")
        await end
    except ConnectionError:
        pass
    finally:
        writer.close()


async def seconds_of(port: int, count: int) -> list[float]:
    """How long legal requests take, one after the other."""
    found = []
    for number in range(count):
        began = time.monotonic()
        caller = await Caller.ask(port, "/v1/completions", completion_body(f"legal {number}"))
        await caller.head()
        assert caller.status == 200
        await caller.rest()
        found.append(time.monotonic() - began)
    return found


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="40 seconds, and asserts on the wall clock")
def test_500_dripping_sockets_are_closed_by_their_deadlines_and_slow_nobody_down(tiny: str) -> None:
    with serving(tiny, "--kv-memory", "4MiB") as server:
        asyncio.run(storm(server.port, 40, 20, seed=1))
        before = settle(server)

        async def scene() -> tuple[list[float], list[float]]:
            alone = await seconds_of(server.port, 200)
            drips = [asyncio.create_task(drip(server.port, BEGINNINGS[number % 3])) for number in range(500)]
            await asyncio.sleep(0.5)
            beside = await seconds_of(server.port, 200)
            async with asyncio.timeout(40):
                await asyncio.gather(*drips)
            return alone, beside

        alone, beside = asyncio.run(scene())

        print(f"p95 {p95(alone) * 1000:.1f} ms alone, {p95(beside) * 1000:.1f} ms beside 500")
        assert p95(beside) <= 1.5 * p95(alone)
        assert settle(server) == before
