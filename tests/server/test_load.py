"""Many more than can be served (R-13): nothing but 429s, and order afterwards (R-20). Long with the deep profile."""

import asyncio
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import pytest

from foreword.load.call import Record
from foreword.load.client import Client
from foreword.load.drive import Pace, drive
from foreword.load.wire import Endpoint
from foreword.load.workload import Workload
from foreword.server.limits import Limits
from tests.profile import DEEP
from tests.server.conftest import TOKEN_BYTES, StartServer

pytestmark = pytest.mark.alone

STREAMS = 256


def flood(url: str, pace: Pace, *, count: int | None, answer: int = 6) -> list[Record]:
    """Clients of which one in twenty resets its connection, and requests of which one in a hundred is garbage."""
    workload = Workload(
        model="tiny", lengths=((20, answer), (60, answer)), shared=0.5, num_prefixes=3, leave=0.05, garbage=0.01
    )

    async def run() -> list[Record]:
        client = Client(Endpoint.of(url), timeout_s=120)
        try:
            return await drive(client, islice(workload.sessions(), count), pace)
        finally:
            client.close()

    return asyncio.run(run())


def count_outcomes(url: str, pace: Pace) -> Counter[str]:
    return Counter(record.outcome for record in flood(url, pace, count=None))


def outcomes_of(url: str, pace: Pace) -> Counter[str]:
    """What became of a flood's requests, in a process of its own: records of 50,000 take as much as a server may."""
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        return other.submit(count_outcomes, url, pace).result()


def test_256_streams_at_once_meet_nothing_but_429(start_server: StartServer) -> None:
    live = start_server(limits=Limits(max_queued_requests=40), kv_memory_bytes=512 * TOKEN_BYTES, debug=False)

    records = flood(live.url, Pace(streams=STREAMS), count=700)

    outcomes = Counter(record.outcome for record in records)
    assert set(outcomes) <= {"ok", "left", "refused", "http_429"}, outcomes
    assert all(record.retry_after for record in records if record.outcome == "http_429")
    assert min(outcomes[kind] for kind in ("ok", "left", "refused", "http_429")) > 0
    live.check_idle()
    after = flood(live.url, Pace(streams=1), count=3)
    assert not any(record.is_error for record in after)
    live.check_idle()


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="a minute long")
@pytest.mark.timeout(600)
def test_a_minute_of_256_streams_leaves_memory_as_it_was(start_server: StartServer) -> None:
    live = start_server(limits=Limits(max_queued_requests=40), kv_memory_bytes=512 * TOKEN_BYTES, debug=False)
    outcomes_of(live.url, Pace(streams=STREAMS, duration_s=15))
    live.check_idle()
    before = rss_bytes()

    outcomes = outcomes_of(live.url, Pace(streams=STREAMS, duration_s=60))

    assert set(outcomes) <= {"ok", "left", "refused", "http_429"}, outcomes
    live.check_idle()
    grown = rss_bytes() - before
    print(f"{dict(outcomes)}, {grown / (1 << 20):.1f} MiB more")
    assert grown < 16 << 20
