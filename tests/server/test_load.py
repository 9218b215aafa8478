"""Many more than can be served (R-13): nothing but 429s, and order afterwards (R-20). Long with the deep profile."""

import asyncio
import os
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from foreword.load.call import Record
from foreword.load.client import Client
from foreword.load.drive import Pace, drive
from foreword.load.wire import Endpoint
from foreword.load.workload import Workload
from foreword.server.limits import Limits
from tests.profile import DEEP
from tests.server.conftest import LiveServer, StartServer

pytestmark = pytest.mark.alone

STREAMS = 256


def flood(live: LiveServer, pace: Pace, *, count: int | None, answer: int = 6) -> list[Record]:
    """Clients of which one in twenty resets its connection, and requests of which one in a hundred is garbage."""
    workload = Workload(
        model="tiny", lengths=((20, answer), (60, answer)), shared=0.5, num_prefixes=3, leave=0.05, garbage=0.01
    )

    async def run() -> list[Record]:
        client = Client(Endpoint.of(live.url), timeout_s=120)
        try:
            return await drive(client, islice(workload.sessions(), count), pace)
        finally:
            client.close()

    return asyncio.run(run())


def test_256_streams_at_once_meet_nothing_but_429(start_server: StartServer) -> None:
    live = start_server(limits=Limits(max_queued_requests=40), kv_memory_bytes=256 << 10, debug=False)

    records = flood(live, Pace(streams=STREAMS), count=700)

    outcomes = Counter(record.outcome for record in records)
    assert set(outcomes) <= {"ok", "left", "refused", "http_429"}, outcomes
    assert all(record.retry_after for record in records if record.outcome == "http_429")
    assert min(outcomes[kind] for kind in ("ok", "left", "refused", "http_429")) > 0
    live.check_idle()
    after = flood(live, Pace(streams=1), count=3)
    assert not any(record.is_error for record in after)
    live.check_idle()


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="a minute long")
@pytest.mark.timeout(600)
def test_a_minute_of_256_streams_leaves_memory_as_it_was(start_server: StartServer) -> None:
    live = start_server(limits=Limits(max_queued_requests=40), kv_memory_bytes=256 << 10, debug=False)
    flood(live, Pace(streams=STREAMS, duration_s=15), count=None)
    live.check_idle()
    before = rss_bytes()

    records = flood(live, Pace(streams=STREAMS, duration_s=60), count=None)

    outcomes = Counter(record.outcome for record in records)
    num_records = len(records)
    assert set(outcomes) <= {"ok", "left", "refused", "http_429"}, outcomes
    live.check_idle()
    assert rss_bytes() - before < 16 << 20, f"{num_records} records of our own are in it"
