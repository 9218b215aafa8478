"""A step that does not end (R-25): told within its time, requests failed, and the process gone where that was asked."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foreword.server.limits import Limits
from foreword.server.watchdog import EXIT_CODE, Watchdog
from tests.server.conftest import StartServer
from tests.server.wire import completion_body, send

SLOW = """
import time
from foreword.runner.model_runner import ModelRunner
execute = ModelRunner.execute
def slowly(*args):
    print("in a step", flush=True)
    for _ in range(100):
        time.sleep(0.01)
    return execute(*args)
ModelRunner.execute = slowly
from foreword.cli.main import main
main()
"""

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


def test_a_process_that_was_halted_in_a_step_is_not_stuck(tiny: str) -> None:
    argv = ["serve", tiny, "--port", "0", "--json", "--kv-memory", "4MiB", "--stuck-after", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
        body = completion_body(max_tokens=1) | {"model": Path(tiny).name}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(send, port, "POST", "/v1/completions", body)
            assert process.stdout.readline() == "in a step\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(3)  # longer than a step may take
            process.send_signal(signal.SIGCONT)
            healths = [send(port, "GET", "/health").status for _ in range(3)]
            answer = asked.result(60)

        assert (answer.status, healths) == (200, [200] * 3)
    finally:
        process.kill()
        process.communicate()


@given(st.lists(st.sampled_from(["look", "halt", "step", "end"]) | st.floats(0.01, 5), max_size=60))
def test_only_time_in_which_the_process_ran_counts(events: list[str | float]) -> None:
    """It looks every tenth of the limit; of each halt, a number of seconds, it counts two tenths at most."""
    now, began, tenths, halts = 0.0, None, 0, 0
    engine: Any = SimpleNamespace(step_age_s=lambda: 0.0 if began is None else now - began)
    watchdog = Watchdog(engine, Limits(stuck_step_s=1.0), lambda code: None, clock=lambda: now)
    watchdog._is_watching = True
    for event in events:
        if event == "step":
            began, tenths, halts = now, 0, 0
        elif event == "end":
            began = None
        else:
            is_halt = isinstance(event, float)
            now += event if isinstance(event, float) else 0.1
            tenths, halts = tenths + (not is_halt), halts + is_halt
        stuck = watchdog.is_stuck()
        if began is None or tenths + 2 * halts < 10:
            assert not stuck
        elif tenths > 10:
            assert stuck


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
