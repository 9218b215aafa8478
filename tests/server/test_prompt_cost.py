"""The number of Python's calls for a request does not grow with its prompt."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import tiny_chat_model
from tests.server.conftest import LiveServer
from tests.server.wire import chat_body, completion_body, message_body, response_body, send

LENGTHS = (400, 3600)
CALLS_PER_TOKEN = 1 / 8
"""Between no call for each token and one. A loop that calls no function of Python is not seen."""


class CallCounter:
    """Counts calls of Python functions, steps of generators among them, in every thread begun while it is set."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            self.calls += 1


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, CallCounter]]:
    path = tiny_chat_model(tmp_path_factory.mktemp("long"), max_position=4096)
    counter = CallCounter()
    threading.setprofile(counter)
    server = LiveServer(path, kv_memory_bytes=32 << 20, debug=False)
    server.start()
    try:
        yield server, counter
    finally:
        server.stop()
        threading.setprofile(None)


def _ids(length: int) -> dict[str, Any]:
    return completion_body([1 + i * i % 250 for i in range(length)], max_tokens=1)


def _text(length: int) -> dict[str, Any]:
    return completion_body("x" * length, max_tokens=1)


def _chat(length: int) -> dict[str, Any]:
    return chat_body("x" * length, max_tokens=1)


def _message(length: int) -> dict[str, Any]:
    return message_body("x" * length, max_tokens=1)


def _response(length: int) -> dict[str, Any]:
    return response_body("x" * length, max_output_tokens=1)


@pytest.mark.parametrize(
    ("path", "body_of"),
    [
        ("completions", _ids),
        ("completions", _text),
        ("chat/completions", _chat),
        ("messages", _message),
        ("responses", _response),
    ],
)
def test_a_longer_prompt_costs_no_more_calls(counted: tuple[LiveServer, CallCounter], path: str, body_of: Any) -> None:
    server, counter = counted
    fewest = []
    for length in LENGTHS:
        body = body_of(length)
        calls = []
        for _ in range(4):  # the first of them computes the prompt
            before = counter.calls
            answer = send(server.port, "POST", f"/v1/{path}", body)
            assert answer.status == 200, answer.body
            calls.append(counter.calls - before)
        fewest.append(min(calls))

    assert fewest[1] - fewest[0] < (LENGTHS[1] - LENGTHS[0]) * CALLS_PER_TOKEN, fewest
