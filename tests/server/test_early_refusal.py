"""Refusals before anything is made of a request: they say what the ordinary way says, and only of whole requests."""

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foreword.server import serving
from foreword.server.app import make_app
from foreword.server.early_refusal import _MOST_REMEMBERED, PATHS, EarlyRefusals
from foreword.server.limits import Limits
from foreword.server.tenants import KeyRing, new_key
from tests.server.conftest import LiveServer, StartServer
from tests.server.described import check_described
from tests.server.test_protocol import closed_within, connect
from tests.server.wire import chat_body, completion_body, message_body, response_body, send, until

BODIES = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": completion_body("hi"),
    "/v1/messages": message_body(),
    "/v1/responses": response_body(),
}
_OF_THE_DAY = re.compile(rb"(request-id: |date: |x-ratelimit-reset-\w+: |ratelimit-\w+-reset: )[^\r]*")


def request(path: str, body: object, *more: str, key: str | None = None) -> bytes:
    """A whole one, in the bytes of a client."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data)}", *more, *([] if key is None else [f"Authorization: Bearer {key}"])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def answer_to(connection: socket.socket) -> bytes:
    """One answer, whole."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    while len(body) < int(found[1]):
        body += connection.recv(65536)
    assert len(body) == int(found[1])
    return head + b"\r\n\r\n" + body


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that was looked at was refused there."""
    found: list[bool] = []
    refuse = EarlyRefusals.refuse

    def refuse_noted(self: EarlyRefusals, *args: Any) -> Any:
        refusal = refuse(self, *args)
        found.append(refusal is not None)
        return refusal

    monkeypatch.setattr(EarlyRefusals, "refuse", refuse_noted)
    return found


Full = tuple[LiveServer, str | None]


@pytest.fixture(params=["queue_full", "rate_limit", "at_once"])
def full(request: pytest.FixtureRequest, start_server: StartServer, tmp_path: Path) -> Iterator[Full]:
    """A server that refuses whatever it is asked, and a key for it."""
    if request.param == "queue_full":
        live = start_server(limits=Limits(max_queued_requests=1))
        ticket = live.service.admission.enter()
        yield live, None
        ticket.leave()
        live.check_idle()
        return
    key, line = new_key("alice", "user")
    (tmp_path / "keys").write_text(f"{line} {'requests=1/d' if request.param == 'rate_limit' else 'concurrent=1'}\n")
    live = start_server(keys=KeyRing.from_file(tmp_path / "keys"))
    tenant = live.service.keys.find(key)
    assert tenant is not None
    permit = live.service.permit(tenant)
    assert permit is not None
    yield live, key
    permit.leave()
    live.check_idle()


@pytest.mark.parametrize("path", sorted(PATHS))
def test_both_ways_say_the_same(full: Full, path: str, early: list[bool], caplog: pytest.LogCaptureFixture) -> None:
    live, key = full
    caplog.set_level("INFO", "foreword.server")
    whole = request(path, BODIES[path], "X-Request-Id: job-1", key=key)
    answers, lines, counts = [], [], []
    for sent in (whole, whole.replace(b"Host", b"X-Twice: 1\r\nX-Twice: 1\r\nHost")):  # what is unusual goes on
        caplog.clear()
        before = counters(live, key)
        with connect(live) as connection:
            connection.sendall(sent)
            answers.append(answer_to(connection))
        until(lambda: any(record.message == "request" for record in caplog.records))  # it comes behind the answer
        counts.append({name: value - before.get(name, 0) for name, value in counters(live, key).items()})
        (record,) = [record for record in caplog.records if record.message == "request"]
        lines.append({**record.fields, "duration_s": 0})  # type: ignore[attr-defined]  # ours

    assert early == [True, False]
    assert answers[0].startswith(b"HTTP/1.1 429 ")
    first, second = (_OF_THE_DAY.sub(rb"\1", answer).split(b"\r\n") for answer in answers)
    assert sorted(first[1:]) == sorted(second[1:])
    assert lines[0] == lines[1]
    assert counts[0] == counts[1]
    assert counts[0][f'foreword:http_requests_total route="{path}"'] == 1
    head, _, body = answers[0].partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    check_described("POST", path, 429, headers, body)


def counters(live: LiveServer, key: str | None) -> dict[str, float]:
    """Of answers and refusals, as they are counted."""
    metrics = live.service.metrics
    answers = {f'foreword:http_requests_total route="{k[0]}"': v for k, v in metrics._http.values.items()}
    return answers | {f"refused {k[0]}": v for k, v in metrics._refused.values.items()}


def test_a_connection_goes_on_after_it(full: Full, early: list[bool]) -> None:
    live, key = full
    with connect(live) as connection:
        for _ in range(3):
            connection.sendall(request("/v1/completions", BODIES["/v1/completions"], key=key))
            assert b" 429 " in answer_to(connection)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in answer_to(connection)
    assert early[:3] == [True] * 3


def test_a_body_that_comes_after_its_refusal_is_dropped(full: Full, early: list[bool]) -> None:
    live, key = full
    whole = request("/v1/completions", completion_body("long " * 100_000), key=key)
    with connect(live) as connection:
        connection.sendall(whole[:400])
        assert b" 429 " in answer_to(connection)
        connection.sendall(whole[400:] + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in answer_to(connection)
    assert early[0]


def test_a_body_that_never_comes_has_the_heads_deadline(start_server: StartServer, early: list[bool]) -> None:
    live = start_server(limits=Limits(max_queued_requests=1, head_timeout_s=0.3))
    ticket = live.service.admission.enter()
    with connect(live) as connection:
        connection.sendall(request("/v1/completions", completion_body("long " * 1000))[:400])
        assert b" 429 " in answer_to(connection)
        assert closed_within(connection, 5, drip=b" ")
    assert early == [True]
    ticket.leave()


def test_a_client_that_wants_it_closed_reads_the_answer_to_its_end(full: Full, early: list[bool]) -> None:
    live, key = full
    for _ in range(20):
        with connect(live) as connection:
            connection.sendall(request("/v1/completions", BODIES["/v1/completions"], "Connection: close", key=key))
            data = b""
            while part := connection.recv(65536):
                data += part
        assert data.startswith(b"HTTP/1.1 429 ")
        assert b"connection: close\r\n" in data
        assert json.loads(data.partition(b"\r\n\r\n")[2])["error"]["code"] == "rate_limit_exceeded"
    assert early == [True] * 20


def test_whoever_is_not_let_in_is_told_that_first(start_server: StartServer, tmp_path: Path, early: list[bool]) -> None:
    key, line = new_key("alice", "user")
    (tmp_path / "keys").write_text(f"{line}\n")
    live = start_server(keys=KeyRing.from_file(tmp_path / "keys"), limits=Limits(max_queued_requests=1))
    ticket = live.service.admission.enter()

    assert send(live.port, "POST", "/v1/completions", completion_body("a")).status == 401
    assert send(live.port, "POST", "/v1/completions", completion_body("a"), key=key, connection=None).status == 429
    assert early[0] is False
    ticket.leave()


def test_a_head_is_read_once_and_forgotten_with_the_keys(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, (key, line) = tmp_path / "keys", new_key("alice", "user")
    path.write_text(f"{line}\n")
    live = start_server(keys=KeyRing.from_file(path), limits=Limits(max_queued_requests=1))
    ticket = live.service.admission.enter()
    refusals = EarlyRefusals(live.service, make_app(live.service))
    heads: list[bytes] = []
    read = EarlyRefusals._read

    def read_noted(self: EarlyRefusals, head: bytes) -> Any:
        heads.append(head)
        return read(self, head)

    monkeypatch.setattr(EarlyRefusals, "_read", read_noted)

    def refusal(text: str, *more: str) -> str | None:
        found = refusals.refuse(request("/v1/completions", completion_body(text), *more, key=key))
        return None if found is None else re.findall(r"\r\nx-request-id: (\S+)", found.answer.decode())[0]

    ids = [refusal("a" * length) for length in (1, 9, 99, 999)]
    assert len(set(ids)) == 4
    assert None not in ids
    assert len(heads) == 1
    assert (refusal("a", "X-Request-Id: mine"), refusal("bcd", "X-Request-Id: mine")) == ("mine", "mine")
    for number in range(2 * _MOST_REMEMBERED):
        assert refusal("a", f"X-Number: {number}") is not None
    assert len(refusals._remembered) == _MOST_REMEMBERED
    assert not any(key.encode() in form for form in refusals._remembered)

    path.write_text(f"{new_key('bob', 'user')[1]}\n")
    live.service.keys = KeyRing.from_file(path)
    assert refusal("a") is None  # the gate will say why
    ticket.leave()


def test_a_refused_client_is_kept_from_its_last_refusal_on(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "KEEP_ALIVE_S", 0.5)
    live = start_server(limits=Limits(max_queued_requests=1))
    ticket = live.service.admission.enter()
    with connect(live) as connection:
        for _ in range(4):
            connection.sendall(request("/v1/completions", BODIES["/v1/completions"]))
            assert b" 429 " in answer_to(connection)
            time.sleep(0.3)
        began = time.monotonic()
        assert closed_within(connection, 5)
        assert time.monotonic() - began < 2
    ticket.leave()


def test_a_request_without_a_host_is_malformed_first(start_server: StartServer, tmp_path: Path) -> None:
    key, line = new_key("alice", "user")
    (tmp_path / "keys").write_text(f"{line}\n")
    live = start_server(keys=KeyRing.from_file(tmp_path / "keys"), limits=Limits(max_queued_requests=1))
    ticket = live.service.admission.enter()

    hostless = request("/v1/completions", BODIES["/v1/completions"], key=key).replace(b"Host: localhost\r\n", b"")
    with connect(live) as connection:
        connection.sendall(hostless)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    ticket.leave()


WHOLE = request("/v1/completions", {"model": "tiny", "prompt": "a"}, "User-Agent: x/1")
PIECES = [b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"0", b"GET / HTTP/1.1\r\n\r\n", b"\x00", b"\x80", b"Host: b\r\n"]
PIECES += [b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"?"]


@pytest.fixture(scope="module")
def refusing(tiny: str) -> Iterator[EarlyRefusals]:
    """Refuses whatever it takes for a request."""
    live = LiveServer(tiny, limits=Limits(max_queued_requests=1))
    live.start()
    ticket = live.service.admission.enter()
    yield EarlyRefusals(live.service, make_app(live.service))
    ticket.leave()
    live.stop()


@given(st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 6), st.sampled_from(PIECES)), max_size=3))
@example([])
@example([(WHOLE.index(b"Host"), 0, b"Transfer-Encoding: chunked\r\n")])
@example([(WHOLE.index(b"Host"), 0, b"Content-Length: 3\r\n")])
def test_what_it_takes_for_a_whole_request_a_parser_takes_for_the_same(
    refusing: EarlyRefusals, changes: list[tuple[int, int, bytes]]
) -> None:
    """Otherwise a body could be taken for a request, or a request for a body. All examples share what is remembered."""
    data = WHOLE
    for place, cut, piece in changes:
        data = data[:place] + piece + data[place + cut :]

    refusal = refusing.refuse(data)

    if not changes:
        assert refusal is not None
    if refusal is not None:
        parser, size = h11.Connection(h11.SERVER), 0
        parser.receive_data(data)
        head = parser.next_event()
        assert isinstance(head, h11.Request)
        assert (head.method, head.target, head.http_version) == (b"POST", b"/v1/completions", b"1.1")
        while isinstance(event := parser.next_event(), h11.Data):
            size += len(event.data)
        assert parser.trailing_data[0] == b""
        rest = refusal.num_bytes - len(data)
        assert (rest == 0) == isinstance(event, h11.EndOfMessage)
        assert size + rest == int(dict(head.headers)[b"content-length"])


def test_a_head_without_end_is_looked_at_once(refusing: EarlyRefusals) -> None:
    """Time that grows with the square of a head would be the loop's: 64 KiB would take minutes."""
    start = b"POST /v1/completions HTTP/1.1\r\n"
    for filling in (b" ", b"a", b"a:", b"a: \r\n", b"\t ", b"a:b\r\n\r"):
        assert refusing.refuse(start + filling * (200_000 // len(filling))) is None


def test_the_standard_librarys_client_which_sends_head_and_body_apart_is_told(full: Full) -> None:
    live, key = full
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
    for _ in range(3):
        headers = {"content-type": "application/json", **({} if key is None else {"authorization": f"Bearer {key}"})}
        connection.request("POST", "/v1/completions", json.dumps(completion_body("x" * 50_000)), headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["type"]) == (429, "rate_limit_error")
    connection.close()
