"""Bytes that are nearly HTTP, in any pieces and at any moment: nothing fails that nobody catches, and order follows."""

import json
import logging
import random
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest

from foreword.server import serving
from foreword.server.limits import Limits
from tests.profile import DEEP
from tests.server.conftest import Keyed, LiveServer
from tests.server.test_protocol import HEAD, connect
from tests.server.wire import chat_body, completion_body, message_body, response_body, send, until

BODIES: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", chat_body()),
    ("/v1/chat/completions", chat_body(stream=True, max_tokens=50, ignore_eos=True)),
    ("/v1/messages", message_body(stream=True)),
    ("/v1/completions", completion_body("a" * 30, n=3, stream=True)),
    ("/v1/completions", completion_body("", max_tokens=0)),
    ("/v1/responses", response_body(stream=True)),
    ("/v1/embeddings", {"model": "tiny", "input": ["ab"] * 20}),
]
OTHER_PATHS = ["/health", "/metrics", "/v1/models", "/cache/stats", "//", "/v1/responses/x"]
UNUSUAL = [
    "Connection: close",
    "Expect: 100-continue",
    "Upgrade: websocket\r\nConnection: Upgrade",
    "X: " + "a" * 70_000,
]


def a_request(rng: random.Random, keys: list[str]) -> bytes:
    """One, mostly right."""
    path, fields = rng.choice(BODIES)
    body = json.dumps(fields).encode()
    method = rng.choice(["POST"] * 4 + ["GET", "HEAD", "PUT", "OPTIONS"])
    path = path if rng.random() < 0.5 else rng.choice(OTHER_PATHS)
    lines = [f"{method} {path} HTTP/{rng.choice(['1.1', '1.1', '1.1', '1.0', '2.0'])}", "Host: localhost"]
    lines += ["Content-Type: application/json", f"Authorization: Bearer {rng.choice(keys)}"]
    lines += [rng.choice(UNUSUAL)] if rng.random() < 0.2 else []
    if rng.random() < 0.2:
        lines.append("Transfer-Encoding: chunked")
        parts = [body[start : start + 20] for start in range(0, len(body), 20)]
        body = b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts]) + b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body) + rng.choice([0, 0, 0, 0, 1, -1, 100, 90_000])}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def mutated(rng: random.Random, data: bytes) -> bytes:
    """With up to three bytes, line ends or parts changed, put in or left out."""
    changed = bytearray(data)
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        start = rng.randrange(len(changed))
        stop = start + rng.choice([0, 1, 20])
        changed[start:stop] = rng.choice([bytes([rng.randrange(256)]), b"\r\n", b"\n", b"\0", b"\r\n\r\n", b" ", b""])
    return bytes(changed)


class Clients:
    """Some connections, on each of which anything may happen next."""

    def __init__(self, keyed: Keyed, seed: int) -> None:
        self._port = keyed.live.port
        self._keys = [*keyed.keys.values(), "wrong"]
        self._rng = random.Random(seed)
        self.sockets: list[socket.socket] = []

    def go_on(self) -> None:
        """One thing more."""
        rng = self._rng
        if not self.sockets or (len(self.sockets) < 30 and rng.random() < 0.5):
            self.sockets.append(self._opened())
        connection = rng.choice(self.sockets)
        try:
            rng.choices([self._ask, self._read, self._half_close, self._reset, self._close], [55, 20, 5, 10, 10])[0](
                connection
            )
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)

    def _opened(self) -> socket.socket:
        connection = socket.socket()
        if self._rng.random() < 0.4:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", self._port))
        connection.setblocking(False)
        return connection

    def _ask(self, connection: socket.socket) -> None:
        rng = self._rng
        data = b"".join([a_request(rng, self._keys) for _ in range(rng.choice([1, 1, 1, 2, 5, 30]))])
        data = mutated(rng, data)
        data = data[: rng.randrange(len(data))] if rng.random() < 0.2 else data
        size = rng.choice([50, 1000, len(data) or 1, len(data) or 1])
        for start in range(0, len(data), size):
            connection.send(data[start : start + size])

    def _read(self, connection: socket.socket) -> None:
        connection.recv(self._rng.choice([1, 100, 65536]))

    def _half_close(self, connection: socket.socket) -> None:
        connection.shutdown(socket.SHUT_WR)

    def _reset(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        connection.close()
        self.sockets.remove(connection)


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("seed", range(20 if DEEP else 2))
def test_whatever_clients_send_and_however_they_leave_order_follows(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    monkeypatch.setattr(serving, "KEEP_ALIVE_S", 0.3)
    limits = Limits(
        max_connections=12, head_timeout_s=0.5, body_timeout_s=0.5, write_timeout_s=0.5, max_body_bytes=20_000
    )
    keyed = Keyed(tiny, tmp_path, limits)
    live = keyed.live
    live.limit_send_buffers()
    live.start()
    clients = Clients(keyed, seed)
    try:
        for number in range(20_000 if DEEP else 2000):
            clients.go_on()
            if number % 50 == 0:
                time.sleep(0.01)  # for the server's turn: they share an interpreter
    finally:
        for connection in clients.sockets:
            connection.close()

    until(lambda: live.server.connections.num_open == 0)
    until(lambda: live.server.door.num_lingering == 0)
    assert live.server.connections.num_kept == 0
    live.check_idle()
    assert send(live.port, "POST", "/v1/completions", completion_body(), key=keyed.keys["bob"]).status == 200
    live.stop()  # and nothing was raised that nobody caught
    assert failures(caplog) == []


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (CHUNKED + b'2\r\n{"\r\nnothing\r\n', b"400"),  # while the body is awaited
        (CHUNKED.replace(b"POST", b"HEAD") + b"nothing\r\n", b"400"),
        (CHUNKED.replace(b"/v1/completions", b"/nowhere") + b"nothing\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nnothing\r\n\r\n", b"200"),  # behind another
        (b"nothing\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_http_is_told_once_and_the_connection_closed(
    server: LiveServer, caplog: pytest.LogCaptureFixture, sent: bytes, status: bytes
) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        answers = read_to_end(connection)
    first, *others = answers.split(b"HTTP/1.1 ")[1:]
    assert first[:3] == status
    assert len(others) == (status == b"200")
    last = (others or [first])[-1]
    assert last.startswith(b"400 Bad Request\r\n")
    head, _, body = last.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "not_http"
    assert failures(caplog) == []


def test_nothing_more_is_said_behind_an_answer_whose_request_goes_wrong(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server) as connection:
        connection.sendall(CHUNKED.replace(b"/v1/completions", b"/nowhere"))
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 404 ")
        with suppress(ConnectionError):
            connection.sendall(b"nothing\r\n")
            assert b"HTTP" not in read_to_end(connection)
    assert failures(caplog) == []


def test_an_upgrade_is_not_made_and_nobody_is_told_to_install_something(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    sent = b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(sent)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
    assert not caplog.records


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data
