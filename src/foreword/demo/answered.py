"""The claim about whole answers: a server with the response cache on, asked the same twice."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foreword.core.errors import ForewordError
from foreword.demo.claim import Bar, Claim

_START_S = 60
_TIMEOUT_S = 60


def deterministic_repeat(model: Path, threads: int) -> Claim:
    """Two equal requests of temperature 0 to a server of its own on loopback; counters from its metrics.

    Raises:
        ForewordError: the server did not start.
    """
    command = [sys.executable, "-m", "foreword", "serve", "--model", str(model), "--threads", str(threads)]
    options = ["--port", "0", "--response-cache", "8MiB", "--json", "--quiet"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            url, name = _ready(server)
            body = {"model": name, "prompt": "The lighthouse stands on", "max_tokens": 32, "temperature": 0}
            taken, counted, answers = [], [_steps(url)], []
            for _ in range(2):
                started = time.perf_counter()
                answers.append(_post(f"{url}/v1/completions", body)["choices"][0]["text"])
                taken.append(time.perf_counter() - started)
                counted.append(_steps(url))
        finally:
            server.terminate()
    first, second = counted[1] - counted[0], counted[2] - counted[1]
    return Claim(
        "A deterministic repeat can skip the model altogether",
        "no step of the model, the same answer",
        f"{first} steps, then {second}; {1000 * taken[0]:.0f} ms, then {1000 * taken[1]:.1f} ms",
        first > 0 and second == 0 and answers[0] == answers[1],
        [
            Bar("model", 1000 * taken[0], f"{1000 * taken[0]:.0f} ms"),
            Bar("stored", 1000 * taken[1], f"{1000 * taken[1]:.1f} ms"),
        ],
        "response cache on, over HTTP",
    )


def _ready(server: "subprocess.Popen[bytes]") -> tuple[str, str]:
    """Address and model name of the server, once it takes requests."""
    assert server.stdout is not None
    line = server.stdout.readline()
    try:
        started = json.loads(line)
        url, name = str(started["url"]), str(started["models"][0])
    except (ValueError, KeyError, IndexError):
        raise ForewordError("the server for the response cache did not start") from None
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=_TIMEOUT_S) as answer:
                if answer.status == 200:
                    return url, name
        except OSError:
            time.sleep(0.02)
    raise ForewordError("the server for the response cache did not get ready")


def _post(url: str, body: Mapping[str, object]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.load(answer)


def _steps(url: str) -> int:
    """Steps the engine has made, by the server's metrics, once it makes no more: answers are out before a last step."""
    before = -1
    while True:
        with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        steps = int(sum(float(line.split()[-1]) for line in lines if line.startswith(_STEPS)))
        if steps == before:
            return steps
        before = steps
        time.sleep(0.1)


_STEPS = "foreword:steps_total"
