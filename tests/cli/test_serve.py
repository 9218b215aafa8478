"""`foreword serve` as a person runs it: one line when it can't, and order when it ends (R-22, R-26)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from foreword.server.tenants import new_key
from tests.cli.conftest import Run

Start = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers; each is given as its process and its address."""
    running: list[subprocess.Popen[str]] = []

    def start(*argv: str) -> "tuple[subprocess.Popen[str], str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "foreword", "serve", *argv, "--port", "0", "--json", "--kv-memory", "4MiB"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        while True:
            try:
                urllib.request.urlopen(f"{url}/ready", timeout=5).close()
                return process, url
            except OSError:
                assert process.poll() is None
                time.sleep(0.02)

    yield start
    for process in running:
        process.kill()
        process.communicate()


def post(url: str, path: str, body: dict[str, Any], key: str = "") -> Any:
    headers = {"content-type": "application/json", "x-api-key": key}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=30)


def wait_until_it_drains(url: str) -> None:
    """The log's line comes a moment before a second signal is taken as one."""
    end = time.monotonic() + 10
    with suppress(OSError):  # 503, or nobody listens any more
        while time.monotonic() < end:
            urllib.request.urlopen(f"{url}/ready", timeout=5).close()
        pytest.fail("it does not drain")


def told_until(process: "subprocess.Popen[str]", event: str) -> list[dict[str, Any]]:
    """The log's next lines, up to one of an event."""
    assert process.stderr is not None
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1]["event"] != event:
        lines.append(json.loads(process.stderr.readline()))
    return lines


def told_at_last(process: "subprocess.Popen[str]", seconds: float) -> list[dict[str, Any]]:
    """The log's other lines, when it has ended, with 0."""
    assert process.wait(seconds) == 0
    assert process.stderr is not None
    return [json.loads(line) for line in process.stderr]


def name_of(path: str) -> str:
    return Path(path).name


def test_it_serves_and_ends_with_0_on_sigterm(start: Start, tiny: str) -> None:
    process, url = start(tiny)
    with post(url, "/v1/completions", {"model": name_of(tiny), "prompt": "a", "max_tokens": 2}) as answer:
        assert len(json.load(answer)["choices"]) == 1

    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)

    assert process.returncode == 0
    events = [json.loads(line) for line in err.splitlines()]
    assert [e["event"] for e in events] == ["request", "draining"]
    assert events[0]["route"] == "/v1/completions"
    assert events[0]["completion_tokens"] == 2


def test_a_running_answer_is_finished_before_the_end(start: Start, tiny: str) -> None:
    process, url = start(tiny)
    body = {"model": name_of(tiny), "prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
    with post(url, "/v1/completions", body) as answer:
        answer.readline()
        process.send_signal(signal.SIGTERM)
        told = answer.read()

    assert b"[DONE]" in told
    assert process.wait(20) == 0


OPENAI, ANTHROPIC = "/v1/completions", "/v1/messages"


@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])
def test_a_second_signal_ends_answers_with_an_error_of_their_dialect(start: Start, tiny: str, path: str) -> None:
    process, url = start(tiny, "--max-num-seqs", "1", "--kv-cache", "off")
    turns = [{"role": "user", "content": "a" * 100}]
    asked = {"messages": turns} if path == ANTHROPIC else {"prompt": "a" * 100, "ignore_eos": True}
    body = {"model": name_of(tiny), "max_tokens": 400, "temperature": 0, "stream": True, **asked}
    with post(url, path, body) as answer:
        answer.readline()
        process.send_signal(signal.SIGINT)
        wait_until_it_drains(url)
        process.send_signal(signal.SIGINT)
        *_, last = (json.loads(line[5:]) for line in answer.read().splitlines() if line.startswith(b"data:"))

    events = told_at_last(process, 10)
    assert last["error"]["type"] == ("overloaded_error" if path == ANTHROPIC else "server_error")
    assert "shutting down" in last["error"]["message"]
    assert [event["event"] for event in events] == ["draining", "ending", "request"]
    assert not [event for event in events if event["level"] == "error"]


def test_a_second_signal_waits_for_nobody_who_does_not_send(start: Start, tiny: str) -> None:
    process, url = start(tiny)
    address = urllib.parse.urlsplit(url)
    lines = b"host: localhost", b"content-type: application/json", b"content-length: 9", b"", b"{"
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(b"\r\n".join([b"POST /v1/completions HTTP/1.1", *lines]))
        time.sleep(0.3)  # nothing tells that a part of a body is there
        process.send_signal(signal.SIGTERM)
        wait_until_it_drains(url)
        process.send_signal(signal.SIGTERM)
        events = told_at_last(process, 10)

    assert [event["event"] for event in events] == ["draining", "ending", "request"]
    assert not [event for event in events if event["level"] == "error"]


def test_signals_in_quick_succession_end_it_with_0(start: Start, tiny: str) -> None:
    process, _ = start(tiny)
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)

    _, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert not [line for line in err.splitlines() if json.loads(line)["level"] == "error"]


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs /proc")
def test_one_socket_listens_and_on_the_loopback(start: Start, tiny: str) -> None:
    process, url = start(tiny)
    inodes = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])

    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                listening.append(words[1])

    port = int(url.rpartition(":")[2])
    assert listening == [f"0100007F:{port:04X}"]


def test_keys_are_demanded_when_given(start: Start, run: Run, tiny: str, tmp_path: Path) -> None:
    made = run("serve", "--new-key", "alice").out
    key, line = made.splitlines()[0].split()[-1], made.splitlines()[1].partition(": ")[2]
    (tmp_path / "keys").write_text(line + "\n")
    _, url = start(tiny, "--api-keys", str(tmp_path / "keys"), "--served-model-name", "m")
    body = {"model": "m", "prompt": "a", "max_tokens": 1}

    with pytest.raises(urllib.error.HTTPError, match="401"):
        post(url, "/v1/completions", body)
    with post(url, "/v1/completions", body, key) as answer:
        assert answer.status == 200


def test_a_port_that_is_taken_is_one_line(run: Run, tiny: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = run("serve", tiny, "--port", port)

    assert ran.code == 2
    assert port in ran.err
    assert "--port" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_keys(run: Run, tiny: str, host: str) -> None:
    ran = run("serve", tiny, "--host", host, "--port", "0")

    assert ran.code == 2
    assert "--api-keys" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("no-such-model",), "no-such-model"),
        (("--api-keys", "/no/such/file"), "/no/such/file"),
        (("--port", "70000"), "--port"),
        (("--new-key", "two words"), "new_key: expected a name of at most 64 letters"),
        (("--max-queued", "0"), "max-queued"),
    ],
)
def test_what_cannot_be_served_is_one_line(run: Run, tiny: str, argv: tuple[str, ...], told: str) -> None:
    model = () if argv[0] == "no-such-model" else (tiny,)

    ran = run("serve", *model, *argv)

    assert ran.code == 2
    assert told in ran.err
    assert ran.out == ""


def test_a_malformed_file_of_keys_names_the_line(run: Run, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# keys\nalice sk-secret\n")

    ran = run("serve", tiny, "--api-keys", str(tmp_path / "keys"))

    assert ran.code == 2
    assert "keys:2" in ran.err
    assert "sk-secret" not in ran.err


def test_a_response_cache_of_a_size_answers_a_repeat(start: Start, tiny: str) -> None:
    _, url = start(tiny, "--response-cache", "1MiB", "--response-cache-ttl", "60")
    body = {"model": name_of(tiny), "prompt": "a", "max_tokens": 2, "temperature": 0}

    marks = []
    for _ in range(2):
        with post(url, "/v1/completions", body) as answer:
            marks.append(answer.headers["foreword-response-cache"])

    assert marks == ["miss", "hit"]


def test_a_hangup_reads_the_file_of_keys_again_and_keeps_the_old_when_it_is_bad(
    start: Start, tiny: str, tmp_path: Path
) -> None:
    (old, old_line), (new, new_line) = new_key("alice", "user"), new_key("alice", "user")
    file = tmp_path / "keys"
    file.write_text(old_line)
    process, url = start(tiny, "--api-keys", str(file))
    body = {"model": name_of(tiny), "prompt": "what alice said", "max_tokens": 1}

    def ask(key: str) -> tuple[int, int]:
        try:
            with post(url, "/v1/completions", body, key) as answer:
                return answer.status, int(answer.headers["foreword-cached-tokens"])
        except urllib.error.HTTPError as error:
            return error.code, 0

    def until(key: str, status: int) -> int:
        end = time.monotonic() + 20
        while (answer := ask(key))[0] != status:
            assert time.monotonic() < end
            time.sleep(0.05)
        return answer[1]

    assert ask(old) == (200, 0)
    assert ask(new)[0] == 401
    file.write_text(f"{new_line} requests=1000/m")
    process.send_signal(signal.SIGHUP)
    assert until(new, 200) == len("what alice said") - 1  # her cache is still hers
    assert ask(old)[0] == 401
    file.write_text("nonsense")
    process.send_signal(signal.SIGHUP)
    events = told_until(process, "keys kept as they were")
    assert ask(new)[0] == 200
    process.send_signal(signal.SIGTERM)
    events += told_at_last(process, 20)
    names = [event["event"] for event in events]
    assert [name for name in names if "keys" in name] == ["keys reloaded", "keys kept as they were"]
