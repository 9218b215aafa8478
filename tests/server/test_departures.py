"""A crowd of clients that leaves in one moment (R-09): what they held is back within a few steps."""

import asyncio
import random
import re
import time
from typing import Any

import pytest

from foreword.server.limits import Limits
from tests.profile import DEEP
from tests.server.conftest import StartServer
from tests.server.crowd import Caller
from tests.server.process import serving
from tests.server.test_streams import CALLS, cancelled, limit, wait_until_free
from tests.server.wire import completion_body, send

pytestmark = pytest.mark.alone

ANSWER = 400


async def leave_together(port: int, count: int) -> None:
    """Clients of four dialects, each after 0 to 5 events of its answer and half of them by reset, all in one moment."""
    rng = random.Random(9)
    gate = asyncio.Barrier(count)

    async def client(number: int) -> None:
        path = list(CALLS)[number % len(CALLS)]
        fields: dict[str, Any] = {} if path == "/v1/messages" else {"ignore_eos": True}
        body = CALLS[path](f"story {number}", stream=True, **limit(path, ANSWER), **fields)
        caller = await Caller.ask(port, path, body)
        await caller.head()
        await caller.events(rng.randint(0, 5))
        await gate.wait()
        caller.leave(by_reset=number % 2 == 0)

    await asyncio.gather(*(client(number) for number in range(count)))


def check_all_were_counted(port: int, count: int) -> None:
    """Each request has ended, without an error, and as cancelled but where its answer was at its end."""
    metrics = send(port, "GET", "/metrics").body
    ended = {
        reason: float(value)
        for reason, value in re.findall(rb'request_success_total{finished_reason="(\w+)",[^}]*} (\S+)', metrics)
    }
    assert sum(ended.values()) == count
    assert ended[b"error"] == 0
    assert cancelled(metrics) > 0.9 * count
    assert send(port, "POST", "/v1/completions", completion_body()).status == 200


def test_a_crowd_that_leaves_at_once_is_computed_for_a_few_steps_more(start_server: StartServer) -> None:
    live = start_server(limits=Limits(max_queued_requests=60), max_num_seqs=60, kv_memory_bytes=16 << 20, debug=False)
    engine = live.service.engine

    asyncio.run(leave_together(live.port, 60))
    before = engine.stats.num_steps
    wait_until_free(live, 60)

    assert engine.stats.num_steps - before < 40  # of the 400 that each of them had before it
    live.check_idle()
    check_all_were_counted(live.port, 60)


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="a figure")
def test_blocks_of_500_clients_that_leave_at_once_come_back_at_once(tiny: str) -> None:
    argv = ["--max-num-seqs", "500", "--max-queued", "500", "--kv-memory", "128MiB", "--threads", "1"]
    with serving(tiny, *argv) as server:
        asyncio.run(leave_together(server.port, 500))
        began, cpu_s = time.monotonic(), server.cpu_s()
        while server.gauge("vllm:kv_cache_usage_perc"):
            assert time.monotonic() < began + 60, "blocks are still held"
        taken, seconds = server.cpu_s() - cpu_s, time.monotonic() - began
        print(f"{taken:.2f} s of the processor, {seconds:.2f} s by the clock")
        assert taken <= 1
        check_all_were_counted(server.port, 500)
