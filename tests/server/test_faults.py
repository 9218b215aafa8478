"""Faults of the reliability table that need a live server: clients that never read (R-10), many that drip (R-15), and
prompts far too large (R-17)."""

import json
import socket
import time
from typing import Any

import pytest

from foreword.server.limits import Limits
from tests.server.conftest import StartServer
from tests.server.test_stalled_readers import stalled_client
from tests.server.test_streams import cancelled, wait_until_free
from tests.server.wire import chat_body, completion_body, send

pytestmark = pytest.mark.alone


def test_a_client_that_never_reads_is_cut_off_and_holds_nothing(start_server: StartServer) -> None:
    live = start_server(limits=Limits(write_timeout_s=0.3), debug=False)
    live.limit_send_buffers()
    held = [stalled_client(live.port) for _ in range(3)]
    end = time.monotonic() + 20
    while not live.service.engine.num_open:
        assert time.monotonic() < end

    assert send(live.port, "POST", "/v1/completions", completion_body()).status == 200
    wait_until_free(live, 60)

    live.check_idle()
    assert cancelled(send(live.port, "GET", "/metrics").body) == len(held)
    for connection in held:
        connection.close()


def test_a_hundred_sockets_that_drip_are_closed_and_legal_requests_answered(start_server: StartServer) -> None:
    live = start_server(limits=Limits(head_timeout_s=0.5, body_timeout_s=0.5), debug=False)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    beginnings = (b"", head, head + b"Content-Length: 100\r\n\r\n{")
    held = [socket.create_connection(("127.0.0.1", live.port), timeout=20) for _ in range(99)]
    for number, connection in enumerate(held):
        connection.sendall(beginnings[number % 3])

    assert send(live.port, "POST", "/v1/completions", completion_body()).status == 200
    ends = []
    for connection in held:
        try:
            while connection.recv(4096):
                pass
            ends.append("closed")
        except ConnectionError:
            ends.append("reset")
        connection.close()

    assert len(ends) == 99
    live.check_idle()
    end = time.monotonic() + 10
    while live.server.server_state.connections:
        assert time.monotonic() < end, "connections are left"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", completion_body("word " * 1_000_000)),
        ("/v1/completions", completion_body("w" * 1_000_000)),
        ("/v1/completions", completion_body([7] * 1_000_000)),
        ("/v1/chat/completions", chat_body("w" * 1_000_000)),
        ("/v1/chat/completions", chat_body() | {"messages": [{"role": "user", "content": "a"}] * 100_000}),
        ("/v1/chat/completions", chat_body(tools=[{"type": "function", "function": {"name": "f"}}] * 100_000)),
        ("/v1/completions", completion_body("w" * 9_000_000)),
    ],
    ids=["words", "one word", "ids", "a message", "messages", "tools", "beyond the body cap"],
)
def test_what_is_far_too_large_is_refused_at_once(start_server: StartServer, path: str, body: dict[str, Any]) -> None:
    live = start_server(debug=False)
    steps = live.service.engine.stats.num_steps

    answer = send(live.port, "POST", path, body)

    assert answer.status == (413 if len(json.dumps(body)) > live.service.limits.max_body_bytes else 400), answer.body
    assert answer.json["error"]["message"]
    assert len(answer.body) < 2000
    live.check_idle()
    assert live.service.engine.stats.num_steps == steps
