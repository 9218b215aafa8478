"""A step that does not end (R-25): told within its time, requests failed, and the process gone where that was asked."""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from foreword.server.limits import Limits
from foreword.server.watchdog import EXIT_CODE
from tests.server.conftest import StartServer
from tests.server.wire import completion_body, send

HANG = """
import time
from foreword.runner.model_runner import ModelRunner
ModelRunner.execute = lambda *args: time.sleep(3600)
from foreword.cli.main import main
main()
"""


def test_a_stuck_step_fails_its_requests_and_health(start_server: StartServer) -> None:
    live = start_server(limits=Limits(stuck_step_s=0.3))
    runner, release = live.service.loaded.engine._runner, threading.Event()
    execute = runner.execute

    def stuck(*args: Any) -> Any:
        assert release.wait(20)
        return execute(*args)

    assert send(live.port, "GET", "/health").status == 200
    runner.execute = stuck  # type: ignore[method-assign, assignment]
    try:
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(send, live.port, "POST", "/v1/completions", completion_body()) for _ in range(2)]
            answers = [future.result() for future in asked]
        health, later = send(live.port, "GET", "/health"), send(live.port, "POST", "/v1/completions", completion_body())
    finally:
        release.set()

    assert [answer.status for answer in answers] == [503, 503]
    assert "not ended within 0.3 s" in answers[0].json["error"]["message"]
    assert (health.status, later.status) == (503, 503)


def test_a_process_that_is_stuck_ends_when_asked_to(tiny: str) -> None:
    argv = ["serve", tiny, "--port", "0", "--json", "--kv-memory", "4MiB", "--stuck-after", "0.5", "--exit-when-stuck"]
    process = subprocess.Popen(
        [sys.executable, "-c", HANG, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        body = json.dumps(completion_body() | {"model": Path(tiny).name}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
        status, end = 0, time.monotonic() + 20
        while not status:
            try:
                urllib.request.urlopen(request, timeout=20)
            except urllib.error.HTTPError as error:
                status = error.code
            except OSError:
                assert time.monotonic() < end

        assert status == 503
        assert process.wait(20) == EXIT_CODE
        assert process.stderr is not None
        events = [json.loads(line) for line in process.stderr.read().splitlines()]
        (stuck,) = [event for event in events if event["event"] == "the engine is stuck"]
        assert any("async_engine.py" in line for line in stuck["where"])
    finally:
        process.kill()
        process.communicate()
