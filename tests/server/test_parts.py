"""Small parts on their own: the door, the log's lines, what errors become, and metrics that agree with answers."""

import io
import json
import logging
import time
from typing import Any

import pytest

from foreword.core.errors import (
    CapacityError,
    InvalidRequestError,
    InvariantError,
    QueueFullError,
    QueueTimeoutError,
    StepFailedError,
    UnavailableError,
)
from foreword.core.sequence import Usage
from foreword.server.account import Account, account
from foreword.server.admission import Admission
from foreword.server.errors import ApiError, anthropic_body, as_api_error, openai_body
from foreword.server.limits import Limits
from foreword.server.logs import JsonFormatter, log
from tests.server.conftest import LiveServer
from tests.server.wire import completion_body, send


def test_the_door_counts_requests_and_their_tokens() -> None:
    door = Admission(Limits(max_queued_requests=2, max_queued_tokens=100))
    first, second = door.enter(), door.enter()
    with pytest.raises(QueueFullError):
        door.enter()

    first.charge(500)  # more than may wait, but nothing else does
    with pytest.raises(QueueFullError):
        second.charge(1)
    first.leave()
    first.leave()
    second.charge(60)
    third = door.enter()
    with pytest.raises(QueueFullError):
        third.charge(41)
    third.charge(40)

    second.leave()
    third.leave()
    assert (door.num_requests, door.num_tokens) == (0, 0)


def test_one_tenant_takes_no_more_places_than_stay_free() -> None:
    door = Admission(Limits(max_queued_requests=8))
    greedy = [door.enter(b"greedy") for _ in range(4)]
    with pytest.raises(QueueFullError):
        door.enter(b"greedy")

    others = [door.enter(b"calm"), door.enter(b"calm"), door.enter(b"third")]

    with pytest.raises(QueueFullError):
        door.enter(b"calm")
    greedy[0].leave()
    others.append(door.enter(b"third"))
    for ticket in (*greedy, *others):
        ticket.leave()
    assert door.num_requests == 0
    alone = [door.enter() for _ in range(8)]  # a server of one tenant gives it all
    assert len(alone) == 8


def test_a_log_line_is_json_whatever_is_in_it() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    nasty = 'a\r\n{"level":"critical"}\x1b[31m\u2028"\\' + "x" * 1_000_000

    logger.info("request", extra={"fields": {"route": nasty, "status": 200, "reasons": ["stop"]}})
    try:
        raise ValueError("the prompt's secret words")
    except ValueError:
        logger.exception("failed")

    lines = stream.getvalue().splitlines()
    first, second = (json.loads(line) for line in stream.getvalue().rstrip("\n").split("\n"))
    assert len(lines[0]) < 1000
    assert first["route"].startswith("a\r\n")
    assert first["status"] == 200
    assert second["error"] == "ValueError"
    assert "secret" not in stream.getvalue()


def test_events_have_their_own_time_level_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "foreword.server")
    before = time.time()
    log("first", n=1)
    log("second", logging.WARNING)
    log("never", logging.DEBUG)

    first, second = caplog.records
    assert [first.getMessage(), first.levelname, first.fields] == ["first", "INFO", {"n": 1}]  # type: ignore[attr-defined]
    assert [second.getMessage(), second.levelno, second.fields] == ["second", logging.WARNING, {}]  # type: ignore[attr-defined]
    assert before <= first.created <= second.created <= time.time()
    assert first.msecs == int(first.created % 1 * 1000)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("n", "at least 1", 0), 400, None),
        (CapacityError("too long"), 400, "context_length_exceeded"),
        (QueueFullError("full"), 429, "rate_limit_exceeded"),
        (QueueTimeoutError("60 s"), 503, "queue_timeout"),
        (UnavailableError("down"), 503, "unavailable"),
        (StepFailedError("secret detail"), 500, "engine_error"),
        (InvariantError("secret detail"), 500, "engine_error"),
        (KeyError("secret detail"), 500, "internal_error"),
    ],
)
def test_every_error_has_a_status_and_tells_no_more_than_it_should(
    error: Exception, status: int, code: str | None
) -> None:
    failure = as_api_error(error, retry_after_s=3)

    assert (failure.status, failure.code) == (status, code)
    assert "secret" not in failure.message
    assert (failure.headers.get("retry-after") == "3") == (status in (429, 503))


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (403, "permission_error", "permission_error"),
        (404, "invalid_request_error", "not_found_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "server_error", "api_error"),
        (503, "server_error", "overloaded_error"),
    ],
)
def test_each_dialect_has_its_word_for_a_status(status: int, openai: str, anthropic: str) -> None:
    error = ApiError(status, "told", "field")
    bodies: list[Any] = [openai_body(error), anthropic_body(error)]

    assert [body["error"]["type"] for body in bodies] == [openai, anthropic]
    assert bodies[1]["error"]["message"] == "field: told"


def test_what_was_written_twice_counts_once() -> None:
    usages = [Usage(100, 40, 200, completion_tokens=3), Usage(10, 0, 10, completion_tokens=1)]

    assert account(usages) == Account(110, 40, 70, 4)
    assert account(usages).uncached == 0


def metric(server: LiveServer, name: str) -> float:
    text = send(server.port, "GET", "/metrics").body.decode()
    (line,) = [line for line in text.splitlines() if line.startswith(name + "{")]
    return float(line.rpartition(" ")[2])


def test_metrics_say_what_the_answers_say(server: LiveServer) -> None:
    names = (
        *("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total"),
        *("foreword:prompt_tokens_written_total", "vllm:e2e_request_latency_seconds_count"),
    )
    before = [metric(server, name) for name in names]
    totals = [0, 0, 0, 0, 0]

    for text in ("metrics and answers", "metrics and answers agree", "metrics"):
        usage = send(server.port, "POST", "/v1/completions", completion_body(text)).json["usage"]
        details = usage["prompt_tokens_details"]
        found = (
            *(usage["prompt_tokens"], details["cached_tokens"], usage["completion_tokens"]),
            *(details["cache_write_tokens"], 1),
        )
        totals = [total + value for total, value in zip(totals, found, strict=True)]

    assert [metric(server, name) - start for name, start in zip(names, before, strict=True)] == totals
    assert metric(server, "vllm:spec_decode_num_draft_tokens_total") == 0  # speculation is off
    assert metric(server, "vllm:spec_decode_num_accepted_tokens_total") == 0
