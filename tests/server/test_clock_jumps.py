"""The clock on the wall is told, never reckoned with (R-26): a jump of a day ends nothing and lengthens nothing."""

import ast
import time
from pathlib import Path

import pytest

import foreword
from foreword.server.limits import Limits
from foreword.server.tenants import KeyRing, new_key
from tests.server.conftest import TOKEN_BYTES, StartServer
from tests.server.wire import completion_body, message_body, response_body, send

DAY = 86_400.0
SOURCES = Path(foreword.__file__).parent
WALL_CLOCKS = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}
TELLERS = {
    "events/publisher.py": "the time of a batch, for whoever reads it",
    "server/logs.py": "the time of a log line",
    "server/openai/chat.py": "`created`",
    "server/openai/completions.py": "`created`",
    "server/openai/responses_answer.py": "`created_at` and `completed_at`",
    "server/quotas.py": "the date at which a limit is open again, from a monotonic wait",
    "server/rerank_routes.py": "`created`",
    "server/service.py": "`created` of the model",
    "text/chat_template.py": "today's date in a template",
}


def test_only_what_tells_a_date_asks_the_clock_on_the_wall() -> None:
    asking = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL_CLOCKS:
                asking.add(str(path.relative_to(SOURCES)))
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert not {alias.name for alias in node.names} & {"time", "time_ns", "localtime", "gmtime"}, path

    assert asking == set(TELLERS)


@pytest.fixture(params=[DAY, -DAY], ids=["a day on", "a day back"])
def jump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Sets every later reading of the wall clock apart; the jump itself is when the test calls `monkeypatch`."""
    return float(request.param)


def set_clock(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)


def test_an_answer_and_a_response_are_kept_over_a_jump(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    live = start_server(limits=Limits(response_cache_bytes=1 << 20))
    again = completion_body("said before", max_tokens=3)
    send(live.port, "POST", "/v1/completions", again)
    stored = send(live.port, "POST", "/v1/responses", response_body()).json["id"]

    set_clock(monkeypatch, jump)

    repeat = send(live.port, "POST", "/v1/completions", again)
    assert repeat.headers["foreword-response-cache"] == "hit"
    assert send(live.port, "GET", f"/v1/responses/{stored}").status == 200
    fresh = send(live.port, "POST", "/v1/completions", completion_body("said now"))
    assert abs(fresh.json["created"] - time.time()) < 60  # told as the wall tells it
    live.check_idle()


def test_a_prefix_asked_for_an_hour_is_kept_over_a_jump(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    live = start_server(kv_memory_bytes=512 * TOKEN_BYTES, retention="lru")
    control = {"type": "ephemeral", "ttl": "1h"}

    def read(letter: str, **marks: object) -> int:
        body = message_body(max_tokens=1, system=[{"type": "text", "text": letter * 100, **marks}])
        return int(send(live.port, "POST", "/v1/messages", body).json["usage"]["cache_read_input_tokens"])

    read("k", cache_control=control)
    read("u")
    set_clock(monkeypatch, jump)
    for number in range(6):
        send(live.port, "POST", "/v1/completions", completion_body(f"{number}" * 200))

    assert read("k", cache_control=control) > 100
    assert read("u") < 100  # what nobody asked to keep was pushed out
    live.check_idle()


def test_a_jump_gives_nobody_another_allowance(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, jump: float, tmp_path: Path
) -> None:
    key, line = new_key("alice", "user")
    (tmp_path / "keys").write_text(f"{line} requests=3/d")
    live = start_server(keys=KeyRing.from_file(tmp_path / "keys"))

    def ask() -> int:
        return send(live.port, "POST", "/v1/completions", completion_body(), key=key).status

    assert [ask() for _ in range(4)] == [200, 200, 200, 429]
    set_clock(monkeypatch, jump)
    assert ask() == 429


def test_a_request_under_way_is_neither_late_nor_stuck_after_a_jump(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    live = start_server(limits=Limits(queue_timeout_s=20, stuck_step_s=20))
    runner = live.service.loaded.engine._runner
    execute = runner.execute

    def jumping(*args: object) -> object:
        set_clock(monkeypatch, jump)
        runner.execute = execute  # type: ignore[method-assign]
        return execute(*args)  # type: ignore[arg-type]

    runner.execute = jumping  # type: ignore[method-assign, assignment]

    answer = send(live.port, "POST", "/v1/completions", completion_body(max_tokens=20, ignore_eos=True))

    assert answer.status == 200
    assert answer.json["usage"]["completion_tokens"] == 20
    assert send(live.port, "GET", "/health").status == 200
