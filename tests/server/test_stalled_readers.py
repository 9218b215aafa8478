"""Clients that ask much and never read (R-10): whoever reads beside them gets a token every step, as if alone."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from foreword.server.limits import Limits
from tests.server.conftest import StartServer
from tests.server.crowd import Caller, request_bytes
from tests.server.test_streams import cancelled
from tests.server.wire import completion_body, send

pytestmark = pytest.mark.alone
NUM_STALLED = 50
LONG = completion_body("on and on", stream=True, max_tokens=120, ignore_eos=True, logprobs=20)
READ = completion_body("one by one", stream=True, max_tokens=120, ignore_eos=True)


def stalled_client(port: int) -> socket.socket:
    """Asks for a long answer, with the smallest window there is, and never reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # before it connects
    connection.connect(("127.0.0.1", port))
    connection.sendall(request_bytes("/v1/completions", LONG))
    return connection


def test_a_reader_gets_a_token_each_step_beside_fifty_that_never_read(start_server: StartServer) -> None:
    live = start_server(limits=Limits(write_timeout_s=1), max_num_seqs=64, kv_memory_bytes=16 << 20, debug=False)
    live.limit_send_buffers()
    engine = live.service.engine

    async def read() -> int:
        while engine.num_open < NUM_STALLED:
            await asyncio.sleep(0.005)
        caller = await Caller.ask(live.port, "/v1/completions", READ)
        await caller.head()
        begun = engine.stats.num_steps
        assert b"[DONE]" in await caller.rest()
        return engine.stats.num_steps - begun

    with ExitStack() as held:
        for _ in range(NUM_STALLED):
            held.enter_context(stalled_client(live.port))
        steps = asyncio.run(read())
        assert steps < READ["max_tokens"] + 40  # some run while the end is read
        live.check_idle()
    assert cancelled(send(live.port, "GET", "/metrics").body) == NUM_STALLED
