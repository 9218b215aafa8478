"""`foreword serve --kv-events`: published on this machine, told at start, refused in one line when it can't be."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foreword.events import EventMirror
from tests.cli.conftest import Run

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed; pip install 'foreword[events]'")


@pytest.fixture
def serving(tiny: str, tmp_path: Path) -> Iterator["tuple[subprocess.Popen[str], str, str]"]:
    """A server, its URL, and the address of its events."""
    endpoint = f"ipc://{tmp_path}/kv"
    options = ["--port", "0", "--kv-memory", "4MiB", "--kv-events", endpoint, "--kv-events-topic", "kv@here@tiny"]
    process = subprocess.Popen(
        [sys.executable, "-m", "foreword", "serve", tiny, *options], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    told = ""
    while "serving" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    assert f"KV events at {endpoint} · replay at {endpoint}-replay" in told
    yield process, told.partition(" at http://")[2].split()[0], endpoint
    process.kill()
    process.communicate()


def completed(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    for _ in range(200):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except ConnectionError:  # it listens, and does not answer yet
            continue
    raise AssertionError("no answer")


def test_what_a_request_stores_is_published_without_a_mark_on_a_server_without_keys(
    serving: "tuple[subprocess.Popen[str], str, str]", tiny: str
) -> None:
    process, url, endpoint = serving
    completed(url, {"model": Path(tiny).name, "prompt": list(range(3, 103)), "max_tokens": 1})

    mirror, payloads = EventMirror(), []
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.set(zmq.RCVTIMEO, 10_000)
        client.connect(f"{endpoint}-replay")
        client.send_multipart([b"", bytes(8)])
        while (frames := client.recv_multipart())[3]:
            assert frames[1] == b"kv@here@tiny"
            mirror.receive(int.from_bytes(frames[2], "big"), frames[3], replayed=True)
            payloads.append(frames[3])

    assert len(mirror.hashes) == 6
    assert not any(b"extra_keys" in payload for payload in payloads)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--kv-events", "tcp://*:5557"), "this machine alone"),
        (("--kv-events", "5557"), "tcp://HOST:PORT"),
        (("--kv-events", "tcp://127.0.0.1:0", "--prefix-cache", "none"), "a prefix cache"),
        (("--kv-events", "ipc:///nowhere/kv"), "can't listen on ipc:///nowhere/kv"),
    ],
)
def test_what_cannot_be_published_is_one_line(run: Run, tiny: str, argv: tuple[str, ...], told: str) -> None:
    ran = run("serve", tiny, "--port", "0", *argv)

    assert ran.code == 2
    assert told in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""
