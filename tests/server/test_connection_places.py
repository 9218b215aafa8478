"""A tenant or an address that holds all the connections it can: another one is answered, and the places come back."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from foreword.server.limits import Limits
from tests.server.conftest import Keyed
from tests.server.test_early_refusal import answer_to
from tests.server.test_protocol import connect
from tests.server.wire import Answer, chat_body, completion_body, send, until

MOST = 8
HOST = b"Host: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def two(tiny: str, tmp_path: Path) -> Iterator[Keyed]:
    """Alice, Bob and few places."""
    keyed = Keyed(tiny, tmp_path, Limits(max_connections=MOST))
    keyed.live.limit_send_buffers()
    keyed.live.start()
    yield keyed
    keyed.live.stop()


class Crowd:
    """Connections of one client, each of a kind."""

    def __init__(self, keyed: Keyed, stack: ExitStack, key: str) -> None:
        self._live, self._stack = keyed.live, stack
        self._key = b"Authorization: Bearer " + key.encode() + b"\r\n"
        self.sockets: list[socket.socket] = []

    def silent(self) -> socket.socket:
        connection = self._stack.enter_context(connect(self._live))
        self.sockets.append(connection)
        return connection

    def slow_head(self) -> socket.socket:
        connection = self.silent()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + self._key + b"X: a")
        return connection

    def idle(self) -> socket.socket:
        connection = self.silent()
        connection.sendall(b"GET /v1/models HTTP/1.1\r\n" + HOST + self._key + b"\r\n")
        assert answer_to(connection).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 429 "))  # where she keeps her share
        return connection

    def slow_body(self) -> socket.socket:
        connection = self.silent()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + HOST + self._key + b"Content-Length: 99\r\n\r\n{")
        return connection

    def unread_stream(self) -> socket.socket:
        connection = self.silent()
        body = json.dumps(chat_body(stream=True, max_tokens=400, ignore_eos=True)).encode()
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + self._key + length + body)
        return connection

    def unread_refusals(self) -> socket.socket:
        """Without a key, and so many that the answers fill all that lies between."""
        connection = self.silent()
        connection.settimeout(0.1)
        with suppress(OSError):
            connection.sendall((b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n") * 50_000)
        return connection


KINDS: list[Callable[[Crowd], socket.socket]] = [
    Crowd.silent,
    Crowd.slow_head,
    Crowd.idle,
    Crowd.slow_body,
    Crowd.unread_stream,
    Crowd.unread_refusals,
]


def ask(keyed: Keyed, label: str) -> Answer:
    return send(keyed.live.port, "POST", "/v1/completions", completion_body(), key=keyed.keys[label])


@pytest.mark.parametrize("kind", KINDS)
def test_another_tenant_is_answered_beside_all_of_one_kind(two: Keyed, kind: Callable[[Crowd], socket.socket]) -> None:
    with ExitStack() as stack:
        crowd = Crowd(two, stack, two.keys["alice"])
        for _ in range(2 * MOST):
            kind(crowd)
        for _ in range(3):
            assert ask(two, "bob").status == 200
        assert send(two.live.port, "GET", "/metrics", key=two.keys["ops"]).status == 200
    until(lambda: two.live.server.connections.num_open == 0)
    assert two.live.server.connections.num_kept == 0
    assert two.live.server.door.num_lingering == 0
    two.live.check_idle()


def test_another_tenant_is_answered_beside_all_kinds_in_turn(two: Keyed) -> None:
    with ExitStack() as stack:
        crowd = Crowd(two, stack, two.keys["alice"])
        for _ in range(4):
            for kind in KINDS:
                kind(crowd)
                assert ask(two, "bob").status == 200


def test_of_one_owners_resting_connections_the_oldest_makes_room(two: Keyed) -> None:
    with ExitStack() as stack:
        crowd = Crowd(two, stack, two.keys["alice"])
        first, *others = [crowd.idle() for _ in range(MOST)]

        assert ask(two, "bob").status == 200

        assert first.recv(1) == b""  # its end, and no reset
        for connection in others:
            connection.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
            assert answer_to(connection).startswith(b"HTTP/1.1 200 ")
        page = send(two.live.port, "GET", "/metrics", key=two.keys["ops"]).body.decode()
    assert 'foreword:connections_displaced_total{model_name="tiny"} 1.0' in page
    assert f'foreword:connections{{model_name="tiny"}} {MOST}.0' in page
    assert 'foreword:connections_kept{model_name="tiny"} 1.0' in page  # the one that asks


@pytest.mark.parametrize("kind", [Crowd.silent, Crowd.slow_head, Crowd.idle])
def test_a_tenants_kept_alive_connection_outlives_anothers_flood(
    two: Keyed, kind: Callable[[Crowd], socket.socket]
) -> None:
    with ExitStack() as stack:
        his = Crowd(two, stack, two.keys["bob"]).idle()
        crowd = Crowd(two, stack, two.keys["alice"])
        for _ in range(4 * MOST):
            kind(crowd)

        his.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert answer_to(his).startswith(b"HTTP/1.1 200 ")


def test_a_tenant_that_keeps_its_share_is_told_in_its_dialect_and_may_ask_again(two: Keyed) -> None:
    with ExitStack() as stack:
        crowd = Crowd(two, stack, two.keys["alice"])
        for number in range(MOST // 2):
            crowd.slow_body()
            until(lambda number=number: two.live.server.connections.num_kept == number + 1)  # type: ignore[misc]  # bound

        refused = ask(two, "alice")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        assert "4 requests of yours are under way" in refused.json["error"]["message"]
        message = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
        told = send(two.live.port, "POST", "/v1/messages", message, key=two.keys["alice2"])  # another key of hers
        assert (told.status, told.json["error"]["type"]) == (429, "rate_limit_error")
        assert ask(two, "bob").status == 200
        assert send(two.live.port, "GET", "/ready", key=two.keys["alice"]).status == 200  # no share in what is open
        assert send(two.live.port, "GET", "/v1/models", key=two.keys["alice"]).status == 429
        crowd.sockets[0].close()
        until(lambda: two.live.server.connections.num_kept == MOST // 2 - 1)
        assert ask(two, "alice").status == 200
        page = send(two.live.port, "GET", "/metrics", key=two.keys["ops"]).body.decode()
    assert 'requests_refused_total{model_name="tiny",reason="tenant_connections"} 3.0' in page


def test_requests_in_a_pipeline_keep_one_place_until_the_last_is_answered(two: Keyed) -> None:
    with ExitStack() as stack:
        crowd = Crowd(two, stack, two.keys["alice"])
        connection = crowd.silent()
        request = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + two.keys["alice"].encode()
        connection.sendall((request + b"\r\n\r\n") * 20)
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 20 or not answers.endswith(b"}"):
            answers += connection.recv(65536)
        until(lambda: two.live.server.connections.num_kept == 0)
        assert two.live.server.connections.num_open == 1
