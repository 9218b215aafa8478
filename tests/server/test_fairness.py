"""One tenant beside another that asks without end (R-14): it waits for a place, not for the other's queue."""

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from foreword.server.limits import Limits
from foreword.server.serving import SWITCH_INTERVAL_S
from foreword.server.tenants import KeyRing, new_key
from tests.profile import DEEP
from tests.server.conftest import StartServer
from tests.server.crowd import Caller, p95
from tests.server.process import serving
from tests.server.wire import completion_body

ANSWER, LONG_ANSWER, SECONDS, RATE = 8, 60, 20, 200
CUT = 0


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str, Path]:
    """Alice's key, Bob's, and the file of both."""
    (alice, first), (bob, second) = new_key("alice", "user"), new_key("bob", "user")
    file = tmp_path / "keys"
    file.write_text(f"{first}\n{second}\n")
    return alice, bob, file


async def ask(port: int, key: str, text: str, answer: int = ANSWER) -> Caller:
    body = completion_body(text, stream=True, max_tokens=answer, ignore_eos=True)
    return await Caller.ask(port, "/v1/completions", body, key=key)


def test_a_tenants_first_token_comes_before_anothers_queue(
    start_server: StartServer, keys: tuple[str, str, Path]
) -> None:
    alice, bob, file = keys
    live = start_server(
        keys=KeyRing.from_file(file), limits=Limits(unmeasured_requests=256), max_num_seqs=4, debug=False
    )
    engine = live.service.engine

    async def scene() -> tuple[int, int]:
        crowd = [await ask(live.port, bob, f"bob {number}", LONG_ANSWER) for number in range(124)]
        async with asyncio.timeout(30):
            while engine.stats.num_running < 4 or engine.stats.num_waiting < 60:
                await asyncio.sleep(0.001)
        before = engine.stats.num_steps
        hers = await ask(live.port, alice, "alice")
        await hers.head()
        steps, waiting = engine.stats.num_steps - before, engine.stats.num_waiting
        assert hers.status == 200
        for caller in [hers, *crowd]:
            await caller.rest()
        return steps, waiting

    steps, waiting = asyncio.run(scene())

    assert waiting > 20, "bob's queue is there when her first token comes"
    assert steps <= 3 * LONG_ANSWER  # a place becomes free within one; bob's queue would be 30 of them
    live.check_idle()


def test_the_loop_is_not_kept_from_the_interpreter_for_long(start_server: StartServer) -> None:
    """The deep test below shows what it is for: a flood's 200 requests a second take 2,000 turns."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        start_server()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    finally:
        sys.setswitchinterval(before)


async def first_tokens(port: int, key: str) -> list[float]:
    """Seconds to the first token of one request a second."""
    found = []
    for number in range(SECONDS):
        began = time.monotonic()
        caller = await ask(port, key, f"alice asks {number}")
        await caller.head()
        found.append(time.monotonic() - began)
        assert caller.status == 200
        await caller.rest()
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))
    return found


async def flood(port: int, key: str) -> Counter[int]:
    """So many requests a second, whatever becomes of them."""
    statuses: Counter[int] = Counter()

    async def one(number: int) -> None:
        try:
            caller = await ask(port, key, f"bob asks {number}")
            await caller.head()
            await caller.rest()
        except (ConnectionError, asyncio.IncompleteReadError):
            statuses[CUT] += 1  # of more connections than a server takes, before its 503 was read
        else:
            statuses[caller.status] += 1

    async with asyncio.TaskGroup() as group:
        began = time.monotonic()
        for number in range(RATE * SECONDS):
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            group.create_task(one(number))
    return statuses


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="40 seconds, and asserts on the wall clock")
def test_a_tenants_p95_beside_200_requests_a_second_of_another(tiny: str, keys: tuple[str, str, Path]) -> None:
    alice, bob, file = keys
    with serving(tiny, "--kv-memory", "16MiB", "--api-keys", str(file), "--threads", "1") as server:

        async def scene() -> tuple[list[float], list[float], Counter[int]]:
            alone = await first_tokens(server.port, alice)
            others = asyncio.create_task(flood(server.port, bob))
            await asyncio.sleep(1)
            beside = await first_tokens(server.port, alice)
            return alone, beside, await others

        alone, beside, statuses = asyncio.run(asyncio.wait_for(scene(), 240))

        print(f"p95 {p95(alone) * 1000:.0f} ms alone, {p95(beside) * 1000:.0f} ms beside; bob got {dict(statuses)}")
        assert set(statuses) <= {200, 429, 503, CUT}
        assert p95(beside) <= max(2 * p95(alone), 0.25)
