"""Deadlines of a connection (R-15), and bounds of a body while it comes in (S-B9)."""

import json
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from foreword.server import serving
from foreword.server.limits import Limits
from tests.server.conftest import Keyed, LiveServer, StartServer
from tests.server.wire import completion_body, send, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(live: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", live.port), timeout=10)


def closed_within(connection: socket.socket, seconds: float, *, drip: bytes = b"") -> bool:
    """Whether the server ends the connection in time, while `drip` is sent again and again."""
    connection.settimeout(0.05)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if drip:
                connection.send(drip)
            if connection.recv(4096) == b"":
                return True
        except TimeoutError:
            pass
        except OSError:
            return True
    return False


@pytest.fixture
def hasty(start_server: StartServer) -> LiveServer:
    return start_server(limits=Limits(head_timeout_s=0.3, body_timeout_s=0.3, max_body_bytes=10_000))


def test_a_connection_that_says_nothing_is_closed(hasty: LiveServer) -> None:
    with connect(hasty) as connection:
        assert closed_within(connection, 3)


def test_a_head_that_drips_is_closed(hasty: LiveServer) -> None:
    with connect(hasty) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        assert closed_within(connection, 3, drip=b"a")


def test_a_second_head_that_drips_is_closed(hasty: LiveServer) -> None:
    with connect(hasty) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        assert closed_within(connection, 3, drip=b"a")


def test_a_body_that_drips_is_408(hasty: LiveServer) -> None:
    with connect(hasty) as connection:
        connection.sendall(HEAD + b"Content-Length: 9000\r\n\r\n{")
        assert b" 408 " in connection.recv(4096)
        assert closed_within(connection, 3)
    hasty.check_idle()


def test_a_slow_answer_is_not_cut_by_the_heads_deadline(hasty: LiveServer) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 400, "ignore_eos": True, "n": 4}
    started = time.monotonic()

    answer = send(hasty.port, "POST", "/v1/completions", body)

    assert answer.status == 200
    assert time.monotonic() - started > 0.3  # otherwise this has shown nothing


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_cap_is_413_before_all_of_it_came(hasty: LiveServer, declared: bool) -> None:
    with connect(hasty) as connection:
        if declared:
            connection.sendall(HEAD + b"Content-Length: 1000000000\r\n\r\n{")
        else:
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n")
            for _ in range(12):
                connection.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
        assert b" 413 " in connection.recv(4096)
        assert closed_within(connection, 3)
    hasty.check_idle()


def test_all_bodies_together_are_bounded(start_server: StartServer) -> None:
    live = start_server(limits=Limits(max_buffered_body_bytes=3000, body_timeout_s=2))
    with connect(live) as first, connect(live) as second:
        first.sendall(HEAD + b"Content-Length: 2500\r\n\r\n" + b" " * 2000)
        while live.service.bodies.buffered_bytes < 2000:
            time.sleep(0.01)
        second.sendall(HEAD + b"Content-Length: 2500\r\n\r\n" + b" " * 2000)
        assert b" 429 " in second.recv(4096)
        first.sendall(b" " * 500)
        assert b" 400 " in first.recv(4096)
    live.check_idle()


def test_a_tenants_bodies_leave_as_much_as_they_take(tiny: str, tmp_path: Path) -> None:
    keyed = Keyed(tiny, tmp_path, Limits(max_buffered_body_bytes=3000))
    keyed.live.start()
    bodies = keyed.live.service.bodies
    with ExitStack() as stack:
        hers = [stack.enter_context(connect(keyed.live)) for _ in range(2)]
        for connection in hers:
            connection.sendall(HEAD + b"Authorization: Bearer " + keyed.keys["alice"].encode())
            connection.sendall(b"\r\nContent-Length: 2900\r\n\r\n" + b" " * 700)
        until(lambda: bodies.buffered_bytes == 1400)
        body = completion_body("hi", user="b" * 600)
        assert send(keyed.live.port, "POST", "/v1/completions", body, key=keyed.keys["bob"]).status == 200
        hers[0].sendall(b" " * 200)
        assert b" 429 " in hers[0].recv(4096)
        until(lambda: bodies.buffered_bytes == 700)
    keyed.live.check_idle()
    keyed.live.stop()


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        HEAD + b"Content-Length: -1\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_malformed_http_is_400_or_closed(server: LiveServer, request_bytes: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(request_bytes)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
        assert answer == b"" or answer.split()[1] == b"400", answer


def test_no_token_waits_for_an_acknowledgement(server: LiveServer) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.recv(4096)
        sockets = [c.transport.get_extra_info("socket") for c in server.server.server_state.connections]

        assert sockets
        assert all(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for s in sockets)


@pytest.mark.parametrize("connection_header", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("takes", [0, 1000])
def test_who_does_not_take_the_end_of_an_answer_is_let_go(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, connection_header: bytes, takes: int
) -> None:
    """Of less than a transport holds before it says so only the answer's end can tell that it lies there."""
    monkeypatch.setattr(serving, "KEEP_ALIVE_S", 0.1)
    live = start_server(limits=Limits(write_timeout_s=0.3))
    live.limit_send_buffers()
    with unread_answer(live, connection_header) as connection:
        until(lambda: live.server.server_state.total_requests > 0)
        (protocol,) = live.server.server_state.connections
        assert 0 < protocol.transport.get_write_buffer_size() < 65_536  # it is not told to pause
        if takes:
            assert len(connection.recv(takes, socket.MSG_WAITALL)) == takes
        until(lambda: not live.server.server_state.connections)


def test_who_takes_it_slowly_gets_all_of_it(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "KEEP_ALIVE_S", 0.1)
    live = start_server(limits=Limits(write_timeout_s=1))
    live.limit_send_buffers()
    with unread_answer(live, b"Connection: close\r\n") as connection:
        answer, began = b"", time.monotonic()
        while part := connection.recv(2000):
            answer += part
            threading.Event().wait(0.1)
        assert time.monotonic() - began > 1  # otherwise this has shown nothing
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head


def unread_answer(live: LiveServer, header: bytes) -> socket.socket:
    """A client that has asked for a few dozen kilobytes, and takes in few."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", live.port))
    body = json.dumps({"model": "tiny", "input": ["ab"] * 30}).encode()
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    connection.sendall(HEAD.replace(b"completions", b"embeddings") + header + length + body)
    return connection
