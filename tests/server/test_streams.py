"""Clients that leave, and many at once (R-09, R-19): nothing is left behind, and nobody else notices."""

import asyncio
import json
import random
import socket
import time
from typing import Any

import anthropic
import openai
import pytest

from foreword.server.limits import Limits
from tests.server.conftest import TOKEN_BYTES, LiveServer, StartServer
from tests.server.crowd import request_bytes
from tests.server.wire import chat_body, completion_body, message_body, response_body, send

CALLS = {
    "/v1/chat/completions": chat_body,
    "/v1/completions": completion_body,
    "/v1/messages": message_body,
    "/v1/responses": response_body,
}
LIMITS = {"/v1/responses": "max_output_tokens"}  # what others call max_tokens

ENDS = (b"[DONE]", b"event: message_stop", b"event: response.completed", b"event: response.incomplete")


def limit(path: str, num_tokens: int) -> dict[str, Any]:
    return {LIMITS.get(path, "max_tokens"): num_tokens}


def wait_until_free(live: LiveServer, seconds: float) -> None:
    end = time.monotonic() + seconds
    while live.service.engine.num_open or live.run(live.service.engine.run(lambda e: e.stats().held_blocks)):
        assert time.monotonic() < end, "blocks are still held"
        time.sleep(0.01)


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", ["closes", "closes its half", "resets"])
def test_blocks_come_back_when_a_client_leaves(server: LiveServer, path: str, stream: bool, leave: str) -> None:
    fields = {} if path == "/v1/messages" else {"ignore_eos": True}
    body = CALLS[path]("tell me a long story", stream=stream, **limit(path, 450), **fields)
    before = send(server.port, "GET", "/metrics").body
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request_bytes(path, body))
        if stream:
            assert b"200 OK" in connection.recv(200)
        while not server.service.engine.num_open:
            time.sleep(0.001)
        if leave == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        elif leave == "closes its half":
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # to the end: the server closes too
                pass

    wait_until_free(server, 2)

    assert cancelled(send(server.port, "GET", "/metrics").body) == cancelled(before) + 1


def cancelled(metrics: bytes) -> float:
    (line,) = [li for li in metrics.splitlines() if li.startswith(b"foreword:requests_cancelled_total")]
    return float(line.split()[-1])


@pytest.mark.parametrize("path", CALLS)
def test_a_failed_step_is_an_event_of_the_dialect_and_the_server_goes_on(start_server: StartServer, path: str) -> None:
    live = start_server()
    runner = live.service.loaded.engine._runner
    execute, steps = runner.execute, []

    def failing(*args: Any) -> Any:
        steps.append(1)
        if len(steps) == 5:
            raise RuntimeError("injected")
        return execute(*args)

    runner.execute = failing  # type: ignore[method-assign, assignment]

    answer = send(live.port, "POST", path, CALLS[path](stream=True, **limit(path, 30), seed=1, temperature=0))

    assert answer.status == 200
    name, data = answer.events[-1]
    told = json.loads(data)
    error = (told["response"] if path == "/v1/responses" else told)["error"]
    if path == "/v1/responses":
        assert name == told["type"] == "response.failed"
        assert told["response"]["status"] == "failed"
        assert error["code"] == "server_error"
    elif path == "/v1/messages":
        assert name == "error"
        assert error["type"] == "api_error"
    else:
        assert error["code"] == "engine_error"
    assert b"injected" not in answer.body
    assert send(live.port, "POST", path, CALLS[path]()).status == 200
    live.check_idle()


def test_a_failed_first_step_is_a_500_of_the_dialect(start_server: StartServer) -> None:
    live = start_server()
    runner = live.service.loaded.engine._runner
    execute = runner.execute

    def failing(*args: Any) -> Any:
        runner.execute = execute  # type: ignore[method-assign]
        raise RuntimeError("injected")

    for stream in (True, False):
        runner.execute = failing  # type: ignore[method-assign, assignment]
        answer = send(live.port, "POST", "/v1/chat/completions", chat_body(stream=stream))
        assert answer.status == 500
        assert answer.json["error"]["code"] == "engine_error"


def slow_down(live: LiveServer, seconds: float) -> None:
    """Let every step take so much longer."""
    runner = live.service.loaded.engine._runner
    execute = runner.execute

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return execute(*args)

    runner.execute = slow  # type: ignore[method-assign, assignment]


def test_a_long_prefill_is_kept_alive_by_pings(start_server: StartServer) -> None:
    live = start_server(limits=Limits(ping_interval_s=0.02))
    slow_down(live, 0.1)

    chat = send(live.port, "POST", "/v1/chat/completions", chat_body(stream=True))
    message = send(live.port, "POST", "/v1/messages", message_body(stream=True))
    response = send(live.port, "POST", "/v1/responses", response_body(stream=True))

    assert b": ping\n\n" in chat.body
    assert chat.events[-1][1] == "[DONE]"
    assert ("ping", '{"type":"ping"}') in message.events
    assert message.events[-1][0] == "message_stop"
    assert b": ping\n\n" in response.body
    assert [response.events[0][0], response.events[-1][0]] == ["response.created", "response.incomplete"]


@pytest.mark.parametrize("path", CALLS)
def test_a_long_prompt_tells_how_far_it_is_read(start_server: StartServer, path: str) -> None:
    live = start_server(limits=Limits(ping_interval_s=0.05, progress_interval_s=0.01), token_budget=16)
    slow_down(live, 0.03)

    answer = send(live.port, "POST", path, CALLS[path]("word " * 60, stream=True, **limit(path, 2)))

    lines = [line for line in answer.body.split(b"\n") if line.startswith(b": prefill ")]
    told = [tuple(map(int, line[10:].split(b"/"))) for line in lines]
    assert len(told) >= 3
    assert told == sorted(set(told))
    assert {total for _, total in told} == {max(total for _, total in told)}
    assert all(0 < done <= total for done, total in told)
    first_data = answer.body.index(b"data:" if path != "/v1/messages" else b"message_start")
    assert answer.body.rindex(b": prefill ") < first_data or path == "/v1/responses"


@pytest.mark.parametrize("path", CALLS)
def test_the_head_comes_with_the_first_piece(server: LiveServer, path: str) -> None:
    """In one call of the system: a client that is woken for the head takes a core from the next step."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request_bytes(path, CALLS[path]("hi", stream=True)))
        head, _, rest = connection.recv(65536).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"data: " in rest
        while not rest.endswith(b"0\r\n\r\n"):
            rest += connection.recv(65536)


def test_a_few_token_ids_wake_no_thread(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to tokenise in them; text always goes to a thread, and so do many."""
    sent = []
    off_loop = server.service.off_loop
    monkeypatch.setattr(server.service, "off_loop", lambda work: sent.append(work) or off_loop(work))  # type: ignore[func-returns-value]
    monkeypatch.setattr("foreword.server.openai.completions.MAX_QUICK_IDS", 3)

    for prompt, num_sent in (([5, 6, 7], 0), ([[5, 6], [7]], 0), ([5, 6, 7, 8], 1), (["a"], 2), ("a", 3)):
        assert send(server.port, "POST", "/v1/completions", completion_body(prompt)).status == 200
        assert len(sent) == num_sent


def test_progress_costs_the_engines_thread_nothing(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds that wait are looked at once a second: commands for it took the thread from those who run."""
    live = start_server(limits=Limits(ping_interval_s=0.05, progress_interval_s=0.01), token_budget=16)
    slow_down(live, 0.05)
    asked = []
    run = live.service.engine.run
    monkeypatch.setattr(live.service.engine, "run", lambda act: asked.append(act) or run(act))  # type: ignore[func-returns-value]

    answer = send(live.port, "POST", "/v1/completions", completion_body("word " * 60, stream=True))

    assert answer.body.count(b": prefill ") >= 3
    assert not asked


def test_official_clients_skip_what_is_told_of_a_prompt(start_server: StartServer) -> None:
    live = start_server(limits=Limits(ping_interval_s=0.05, progress_interval_s=0.01), token_budget=16)
    slow_down(live, 0.03)
    turns: Any = [{"role": "user", "content": "word " * 60}]

    gpt = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    with gpt, gpt.chat.completions.create(model="tiny", messages=turns, max_tokens=3, stream=True) as chunks:
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("length", "stop")
    claude = anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0)
    turns[0]["content"] = "other " * 60
    with (
        claude,
        claude.messages.stream(model="tiny", messages=turns, max_tokens=3, extra_body={"temperature": 0}) as events,
    ):
        assert events.get_final_message().usage.output_tokens == 3


def test_draining_lets_running_answers_finish_and_refuses_others(start_server: StartServer) -> None:
    live = start_server()
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as connection:
        body = completion_body("go", stream=True, max_tokens=200, ignore_eos=True)
        connection.sendall(request_bytes("/v1/completions", body))
        assert b"200 OK" in connection.recv(100)

        live.loop.call_soon_threadsafe(live.server.drain)
        while live.service.engine.refusal is None:
            time.sleep(0.001)
        refused = send(live.port, "POST", "/v1/completions", completion_body())
        ready = send(live.port, "GET", "/ready")
        told = b"".join(iter(lambda: connection.recv(65536), b""))

    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"
    assert ready.status == 503
    assert b"[DONE]" in told
    assert told.count(b'"finish_reason":"length"') == 1


def test_many_streams_at_once_with_some_leaving(start_server: StartServer) -> None:
    live = start_server(kv_memory_bytes=512 * TOKEN_BYTES)  # streams wait, and push each other out
    rng = random.Random(7)

    async def client(number: int) -> str:
        path = rng.choice(list(CALLS))
        prefix = "a shared beginning of all " * (number % 2)
        body = CALLS[path](f"{prefix}{number}", stream=True, **limit(path, rng.randint(1, 20)))
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        try:
            writer.write(request_bytes(path, body))
            if rng.random() < 0.05:
                await asyncio.sleep(rng.random() * 0.2)
                return "left"
            answer = await reader.read()
            status = answer.split()[1].decode()
            ended = any(mark in answer for mark in ENDS)
            return status if ended or status != "200" else "cut"
        finally:
            writer.close()

    async def storm() -> list[str]:
        found: list[str] = []

        async def worker(first: int) -> None:
            for number in range(first, 256, 64):
                found.append(await client(number))

        await asyncio.gather(*(worker(first) for first in range(64)))
        return found

    outcomes = asyncio.run(storm())

    assert set(outcomes) <= {"200", "left", "429"}, sorted(set(outcomes))
    assert outcomes.count("200") > 200
    live.check_idle()
    assert live.service.engine.stats.num_preemptions + live.service.engine.stats.evicted_blocks > 0
