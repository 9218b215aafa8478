"""Whatever comes in, the event loop goes on (R-17): others' tokens don't wait for somebody's eight megabytes."""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.profile import DEEP
from tests.server.conftest import LiveServer, StartServer
from tests.server.wire import chat_body, completion_body, message_body, response_body, send

pytestmark = pytest.mark.alone

USER = {"role": "user", "content": "a"}
FUNCTION: Any = {"type": "function", "function": {"name": "f"}}
NESTED: Any = {"type": "object", "x": [{}] * 98_000}  # just few enough to be read
CALL: Any = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT: Any = {"role": "tool", "tool_call_id": "c0", "content": "a"}
CALLS: Any = {"role": "assistant", "tool_calls": [CALL | {"id": f"c{number}"} for number in range(6000)]}

PARTS: Any = [{"type": "text", "text": "a"}] * 33_000
TURN: Any = {"role": "user", "content": PARTS[:1]}
DEEP_TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": NESTED}}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": NESTED}}
COMPLETIONS, CHAT, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/messages"

BODIES: dict[str, tuple[str, Any]] = {
    "words": (COMPLETIONS, completion_body("word " * 1_000_000)),
    "a word": (COMPLETIONS, completion_body("w" * 8_000_000)),
    "ids": (COMPLETIONS, completion_body([7] * 2_600_000)),
    "ids that may be": (COMPLETIONS, completion_body([7] * 499_000)),
    "prompts": (COMPLETIONS, completion_body(["a"] * 499_000)),
    "biases": (COMPLETIONS, completion_body(logit_bias={str(number): 1 for number in range(300_000)})),
    "biases that may be": (COMPLETIONS, completion_body(logit_bias={str(number): 1 for number in range(98_000)})),
    "messages": (CHAT, chat_body(messages=[USER] * 100_000)),
    "messages that may be": (CHAT, chat_body(messages=[USER] * 10_000)),
    "parts": (CHAT, chat_body(messages=[USER | {"content": PARTS}])),
    "tools": (CHAT, chat_body(tools=[FUNCTION] * 100_000)),
    "a tool": (CHAT, chat_body(tools=[DEEP_TOOL])),
    "results": (CHAT, chat_body(messages=[USER, CALLS, *[RESULT] * 9000])),
    "lists": (CHAT, chat_body(chat_template_kwargs={"a": [[]] * 2_000_000})),
    "depth": (CHAT, b'{"model":"tiny","messages":' + b"[" * 8_000_000),
    "a form": (CHAT, chat_body(response_format=FORM)),
    "blocks": (MESSAGES, message_body(system=PARTS)),
    "turns of blocks": (MESSAGES, message_body(messages=[TURN] * 10_000)),
    "a tool of a message": (MESSAGES, message_body(tools=[{"name": "f", "input_schema": NESTED}])),
    "items": ("/v1/responses", response_body([USER] * 10_000)),
    "text": ("/tokenize", {"model": "tiny", "prompt": "w " * 3_000_000}),
    "texts": ("/v1/embeddings", {"model": "tiny", "input": ["a"] * 499_000}),
    "tokens": ("/detokenize", {"model": "tiny", "tokens": [777] * 499_000}),
    "documents": ("/v1/rerank", {"model": "tiny", "query": "q", "documents": ["a"] * 499_000}),
}


class Lag:
    """How long the loop did nothing else, in a row: by the clock, and by the processor time of its thread."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_s: list[float] = []

    async def watch(self) -> None:
        clock, cpu = time.monotonic(), time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            self.seconds.append(time.monotonic() - clock - 0.001)
            self.cpu_s.append(time.thread_time() - cpu)
            clock, cpu = time.monotonic(), time.thread_time()


@contextmanager
def watched(live: LiveServer) -> Iterator[Lag]:
    lag = Lag()
    task = asyncio.run_coroutine_threadsafe(lag.watch(), live.loop)
    try:
        yield lag
    finally:
        task.cancel()


@pytest.mark.parametrize("name", BODIES)
def test_a_body_far_too_large_does_not_hold_the_loop(start_server: StartServer, name: str) -> None:
    path, body = BODIES[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    live = start_server(debug=False)
    send(live.port, "POST", path, data[:100])  # what is imported or started at first use

    with watched(live) as lag:
        answer = send(live.port, "POST", path, data)

    assert answer.status == (413 if len(data) > live.service.limits.max_body_bytes else 400), answer.body
    assert max(lag.cpu_s) < 0.15, "of its own doing: the machine may be as busy as it likes"
    live.check_idle()


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="asserts on the wall clock")
def test_lag_while_all_of_them_come_again_and_again(start_server: StartServer) -> None:
    live = start_server(debug=False)
    bodies = [(path, b if isinstance(b, bytes) else json.dumps(b).encode()) for path, b in BODIES.values()]

    with watched(live) as lag:
        for _ in range(5):
            for path, data in bodies:
                assert send(live.port, "POST", path, data).status in (400, 413)

    p99 = statistics.quantiles(lag.seconds, n=100)[-1]
    clock, own = max(lag.seconds) * 1000, max(lag.cpu_s) * 1000
    print(f"p99 {p99 * 1000:.0f} ms, at most {clock:.0f} ms, of these {own:.0f} the loop's own")
    assert p99 < 0.05
