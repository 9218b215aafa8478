"""A server that has ended: nothing of it is called any more, and nothing of it is left open."""

import gc
import signal
import socket
import warnings
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from foreword.server.limits import Limits
from tests.server.conftest import LiveServer, StartServer
from tests.server.test_protocol import connect, unread_answer
from tests.server.wire import until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def silent(live: LiveServer) -> socket.socket:
    return connect(live)


def half_a_head(live: LiveServer) -> socket.socket:
    connection = connect(live)
    connection.sendall(HEAD)
    return connection


def half_a_body(live: LiveServer) -> socket.socket:
    connection = connect(live)
    connection.sendall(HEAD + b"Content-Length: 99\r\n\r\n{")
    return connection


def kept_alive(live: LiveServer) -> socket.socket:
    connection = connect(live)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def unread(live: LiveServer) -> socket.socket:
    connection = unread_answer(live, b"Connection: close\r\n")
    until(lambda: live.server.server_state.total_requests > 0)
    return connection


def turned_away(live: LiveServer) -> socket.socket:
    with ExitStack() as stack:
        for _ in range(live.service.limits.max_connections):
            stack.enter_context(half_a_body(live))
        until(lambda: live.server.connections.num_kept == live.service.limits.max_connections)
        connection = connect(live)
        until(lambda: live.server.door.num_lingering == 1)
        return connection


@pytest.mark.parametrize("begin", [silent, half_a_head, half_a_body, kept_alive, unread, turned_away])
def test_no_connection_is_left_open(start_server: StartServer, begin: Callable[[LiveServer], socket.socket]) -> None:
    live = start_server(limits=Limits(max_connections=3, body_timeout_s=1))
    live.limit_send_buffers()
    with begin(live), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        live.stop()
        gc.collect()
    assert [str(warning.message) for warning in told] == []


def test_a_signal_behind_the_loops_end_is_taken(start_server: StartServer) -> None:
    live = start_server()
    live.stop()

    live.server.handle_exit(signal.SIGTERM, None)

    assert live.server.should_exit
