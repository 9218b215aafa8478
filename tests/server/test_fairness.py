"""One tenant beside another that asks without end (R-14): it waits for a place, not for the other's queue."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from foreword.core.outputs import SequenceStep
from foreword.engine.engine_request import EngineRequest
from foreword.engine.engine_stream import EngineStream
from foreword.server.limits import Limits
from foreword.server.serving import SWITCH_INTERVAL_S
from foreword.server.tenants import KeyRing, new_key
from tests.profile import DEEP
from tests.server.conftest import StartServer
from tests.server.crowd import p95
from tests.server.flood import ANSWER, CUT, ask
from tests.server.process import serving

LONG_ANSWER, SECONDS, RATE = 60, 20, 200
ROOT = Path(__file__).parents[2]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str, Path]:
    """Alice's key, Bob's, and the file of both."""
    (alice, first), (bob, second) = new_key("alice", "user"), new_key("bob", "user")
    file = tmp_path / "keys"
    file.write_text(f"{first}\n{second}\n")
    return alice, bob, file


def test_a_tenants_first_token_comes_before_anothers_queue(
    start_server: StartServer, keys: tuple[str, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in the engine, from asking it to its answer: on a busy machine the way there and back takes steps too."""
    alice, bob, file = keys
    live = start_server(
        keys=KeyRing.from_file(file), limits=Limits(unmeasured_requests=256), max_num_seqs=4, debug=False
    )
    engine, submit = live.service.engine, live.service.engine.submit
    found: list[tuple[int, int]] = []

    def submit_noted(requests: Sequence[EngineRequest], receive: Callable[[SequenceStep], Any]) -> EngineStream[Any]:
        is_hers, before = requests[0].params.max_tokens == ANSWER, engine.stats.num_steps

        def noted(step: SequenceStep) -> Any:
            if is_hers and not found:
                stats = live.service.loaded.engine.stats()
                found.append((stats.num_steps - before, stats.num_waiting))
            return receive(step)

        return submit(requests, noted)

    monkeypatch.setattr(engine, "submit", submit_noted)

    async def scene() -> None:
        crowd = [await ask(live.port, bob, f"bob {number}", LONG_ANSWER) for number in range(124)]
        async with asyncio.timeout(30):
            while engine.stats.num_running < 4 or engine.stats.num_waiting < 60:
                await asyncio.sleep(0.001)
        hers = await ask(live.port, alice, "alice")
        await hers.head()
        assert hers.status == 200
        for caller in [hers, *crowd]:
            await caller.rest()

    asyncio.run(scene())

    ((steps, waiting),) = found
    assert waiting > 20, "bob's queue is there when her first token comes"
    assert steps <= 2 * LONG_ANSWER  # a place becomes free within one; bob's queue would be 30 of them
    live.check_idle()


@pytest.fixture
def pythons_interval() -> Iterator[None]:
    """Python's own interval, put back after the test's servers have ended."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_the_loop_is_not_kept_from_the_interpreter_for_long(pythons_interval: None, start_server: StartServer) -> None:
    """The deep test below shows what it is for: a flood's 200 requests a second take 2,000 turns."""
    start_server()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)


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


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="40 seconds, and asserts on the wall clock")
def test_a_tenants_p95_beside_200_requests_a_second_of_another(tiny: str, keys: tuple[str, str, Path]) -> None:
    alice, bob, file = keys
    with serving(tiny, "--kv-memory", "16MiB", "--api-keys", str(file), "--threads", "1") as server:
        alone = asyncio.run(first_tokens(server.port, alice))
        command = [sys.executable, "-m", "tests.server.flood", str(server.port), bob, str(RATE), str(SECONDS + 3)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as others:
            time.sleep(2)  # it has begun
            beside = asyncio.run(first_tokens(server.port, alice))
            told, _ = others.communicate(timeout=240)

        statuses = {int(status): number for status, number in json.loads(told).items()}
        print(f"p95 {p95(alone) * 1000:.0f} ms alone, {p95(beside) * 1000:.0f} ms beside; bob got {statuses}")
        assert sum(statuses.values()) == RATE * (SECONDS + 3)
        assert set(statuses) <= {200, 429, 503, CUT}
        assert p95(beside) <= max(2 * p95(alone), 0.25)
