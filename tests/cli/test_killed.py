"""A server that was killed leaves nothing that hinders the next one: port, lock, socket, file."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from foreword.replay.trace import Trace, TraceOptions

Start = Callable[[], "subprocess.Popen[str]"]
STREAM = {"model": "tiny", "prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def start(tiny: str, tmp_path: Path, port: int) -> Iterator[Start]:
    """Starts the same server each time, with everything that it may keep outside its process."""
    running: list[subprocess.Popen[str]] = []
    options = ["--port", str(port), "--served-model-name", "tiny", "--kv-memory", "4MiB", "--json"]
    options += ["--record", str(tmp_path / "trace"), "--kv-events", f"ipc://{tmp_path}/events"]

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "foreword", "serve", tiny, *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        running.append(process)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"] == f"http://127.0.0.1:{port}"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_server_killed_among_its_streams_is_back_at_once(start: Start, port: int, tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed; pip install 'foreword[events]'")
    body = json.dumps(STREAM).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    for _ in range(3):
        process = start()
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(8)]
            for client in clients:
                client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            for client in clients[:4]:
                assert client.recv(12) == b"HTTP/1.1 200"
            ask(port)  # recorded, while the others run
            process.send_signal(signal.SIGKILL)
            assert process.wait(20) == -signal.SIGKILL
            start().kill()  # the streams' sockets are still there, on this side and in the system
    last = start()
    ask(port)
    last.send_signal(signal.SIGTERM)
    assert last.wait(30) == 0
    assert list(Trace(tmp_path / "trace", TraceOptions()).requests())


def ask(port: int) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a" * 64, "max_tokens": 2}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 2
