"""More connections than a server takes: each is told so in an answer of its own, whatever it asks and however."""

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import anthropic
import openai
import pytest

from foreword.server import turned_away
from foreword.server.limits import Limits
from foreword.server.serving import OTHER_DESCRIPTORS
from tests.server.conftest import LiveServer, StartServer
from tests.server.process import serving
from tests.server.test_protocol import connect
from tests.server.wire import chat_body, message_body, send, until

TAKEN = 3
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@contextmanager
def filled(live: LiveServer) -> Iterator[None]:
    """As many connections as it takes, with a request under way on each."""
    with ExitStack() as stack:
        for _ in range(TAKEN):
            stack.enter_context(connect(live)).sendall(HEAD + b"Content-Length: 9\r\n\r\n")
        until(lambda: live.server.connections.num_kept == TAKEN)
        yield


def received(connection: socket.socket) -> bytes:
    """All that comes until the server's end of the connection; a reset fails."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def check_answer(answer: bytes) -> None:
    """Exactly one answer, complete."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 503 Service Unavailable"
    assert {"retry-after: 1", "connection: close", f"content-length: {len(body)}"} <= set(lines)
    assert json.loads(body)["error"]["code"] == "too_many_connections"


@pytest.fixture
def live(start_server: StartServer) -> LiveServer:
    return start_server(limits=Limits(max_connections=TAKEN))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", chat_body()),
        ("POST", "/v1/chat/completions", chat_body("long " * 100_000, stream=True)),
        ("POST", "/v1/messages", message_body()),
        ("POST", "/v2/rerank", {"model": "tiny", "query": "a", "documents": ["b"]}),
        ("GET", "/v1/models", None),
        ("GET", "/metrics", None),
    ],
)
def test_every_route_answers_alike_and_as_described(live: LiveServer, method: str, path: str, body: object) -> None:
    with filled(live):
        answer = send(live.port, method, path, body)

        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert f"{TAKEN} connections" in answer.json["error"]["message"]
        until(lambda: live.server.door.num_lingering == 0)
    until(lambda: not live.server.connections.num_open)
    assert send(live.port, "GET", "/v1/models").status == 200
    assert (
        b'requests_refused_total{model_name="tiny",reason="connections"} 1.0' in send(live.port, "GET", "/metrics").body
    )


def test_the_providers_own_clients_tell_it_as_an_overload(live: LiveServer) -> None:
    asked = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    told = anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0)
    with filled(live):
        with pytest.raises(openai.InternalServerError, match="3 connections are open") as refused:
            asked.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
        assert (refused.value.status_code, refused.value.code) == (503, "too_many_connections")
        with pytest.raises(anthropic.APIStatusError, match="3 connections are open") as overloaded:
            told.messages.create(model="tiny", max_tokens=4, messages=[{"role": "user", "content": "hi"}])
        assert overloaded.value.status_code == 503


def test_what_is_still_being_sent_does_not_undo_the_answer(live: LiveServer) -> None:
    with filled(live), connect(live) as connection:
        connection.sendall(HEAD + b"Content-Length: 400000\r\n\r\n")
        assert connection.recv(1, socket.MSG_PEEK)  # the answer is there
        for _ in range(40):
            connection.sendall(b" " * 10_000)
        check_answer(received(connection))


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00", b"G", b"\r\n\r\n", HEAD * 3])
def test_nothing_of_a_request_is_read(live: LiveServer, sent: bytes) -> None:
    with filled(live), connect(live) as connection:
        connection.sendall(sent)
        check_answer(received(connection))


def test_who_has_said_all_before_the_answer_gets_it(live: LiveServer) -> None:
    with filled(live), connect(live) as connection:
        connection.shutdown(socket.SHUT_WR)
        check_answer(received(connection))


def test_who_says_nothing_is_told_and_let_go(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned_away, "LINGER_S", 0.1)
    with filled(live), connect(live) as connection:
        check_answer(received(connection))
        until(lambda: live.server.door.num_lingering == 0)


def test_who_sends_without_end_is_let_go(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned_away, "LINGER_S", 600)
    monkeypatch.setattr(turned_away, "MAX_DROPPED_BYTES", 100_000)
    with filled(live), connect(live) as connection:
        with pytest.raises(ConnectionError):
            connection.sendall(b" " * 100_000_000)
        until(lambda: live.server.door.num_lingering == 0)


def test_no_more_linger_than_may_and_all_of_them_are_told(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned_away, "MAX_LINGERING", 2)
    monkeypatch.setattr(turned_away, "LINGER_S", 600)
    with filled(live), ExitStack() as stack:
        crowd = [stack.enter_context(connect(live)) for _ in range(20)]
        for connection in crowd[2:]:
            check_answer(received(connection))
        assert live.server.door.num_lingering == 2
        for connection in crowd[:2]:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            check_answer(received(connection))
    until(lambda: live.server.door.num_lingering == 0)


def test_a_low_limit_of_descriptors_is_raised_as_far_as_connections_need(tiny: str) -> None:
    """A soft one of 64."""
    with serving(tiny, descriptors=64) as server, ExitStack() as stack:
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert soft == min(hard, Limits().max_connections + turned_away.MAX_LINGERING + OTHER_DESCRIPTORS)
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("descriptors", [64, 700])
def test_with_few_descriptors_all_who_come_are_answered(tiny: str, descriptors: int) -> None:
    """Each beside all before it, which stay; without a bound of its own the server would not accept the last ones."""
    with serving(tiny, descriptors=descriptors, limit="-n") as server, ExitStack() as stack:
        for _ in range(descriptors):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert server.num_descriptors() < descriptors
        assert server.gauge("foreword:connections") > descriptors // 4
