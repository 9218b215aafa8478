"""`foreword doctor --url`: the same lines of a running server, and one clear line when there is none."""

import socket
import threading

import pytest

from tests.cli.conftest import Run
from tests.server.conftest import Keyed, LiveServer
from tests.server.conftest import _shared_keyed as _shared_keyed
from tests.server.conftest import _shared_server as _shared_server
from tests.server.conftest import keyed as keyed
from tests.server.conftest import server as server


def test_a_running_server_is_examined_line_by_line(run: Run, keyed: Keyed) -> None:
    ran = run("doctor", "--url", keyed.live.url, "--key", keyed.keys["ops"])

    assert ran.code == 0, ran.err
    assert all(line.split()[0] in ("ok", "warn") for line in ran.out.splitlines()), ran.out
    for check in ("kernels", "invariants", "queue", "stability", "static first", "budgets"):
        assert check in ran.out


def test_json_is_the_servers_report_and_the_key_may_come_from_the_environment(
    run: Run, keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREWORD_API_KEY", keyed.keys["ops"])

    report = run("doctor", "--url", keyed.live.url + "/", "--json").json

    assert report["ok"] is True
    assert isinstance(report["traffic"], dict)


def test_whoever_may_not_ask_is_told_so_in_one_line(run: Run, keyed: Keyed, server: LiveServer) -> None:
    for url, key in ((keyed.live.url, keyed.keys["bob"]), (keyed.live.url, "no key"), (server.url, "any")):
        ran = run("doctor", "--url", url, "--key", key)
        assert ran.code == 2
        assert ran.err.count("\n") == 1
        assert "operator" in ran.err or "API key" in ran.err


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://h:99999", "http://[::1", "file:///x"])
def test_what_is_no_address_is_refused(run: Run, url: str) -> None:
    ran = run("doctor", "--url", url)

    assert ran.code == 2
    assert "url: expected an address" in ran.err


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "no answer"),
        (b"not http at all\r\n\r\n", "no answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "is it a foreword server?"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n", "302"),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"checks": 1}', "not an answer of foreword's"),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"checks": [1]}', "not a report of foreword's"),
    ],
)
def test_an_answer_that_is_no_report_is_one_line(run: Run, answer: bytes, told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reply() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        ran = run("doctor", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(10)

    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert told in ran.err
