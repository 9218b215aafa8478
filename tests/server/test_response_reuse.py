"""A request asked again is answered without the model, and nobody can tell but by the marks (S-C8)."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreword.server.limits import Limits
from tests.server.conftest import Keyed, LiveServer, StartServer
from tests.server.crowd import request_bytes
from tests.server.wire import Answer, chat_body, completion_body, message_body, send

CALLS: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", chat_body),
    "completion": ("/v1/completions", completion_body),
    "message": ("/v1/messages", message_body),
}
CACHED = Limits(response_cache_bytes=1 << 20)
OPENING = 1 + len("user\n")  # of a chat prompt: one special token, then a token a letter
MARK = "foreword-response-cache"


@pytest.fixture(scope="module")
def _cached(tiny: str) -> Iterator[LiveServer]:
    server = LiveServer(tiny, limits=CACHED)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def cached(_cached: LiveServer) -> Iterator[LiveServer]:
    """A server with a response cache, empty."""
    responses = _cached.service.responses
    assert responses is not None
    _cached.loop.call_soon_threadsafe(responses.reset)
    yield _cached
    _cached.check_idle()
    wait_for(lambda: not responses.flights)


def ask(live: LiveServer, kind: str, *args: Any, key: str | None = None, control: str = "", **fields: Any) -> Answer:
    path, body = CALLS[kind]
    headers = {"cache_control": control} if control else {}
    answer = send(live.port, "POST", path, body(*args, **fields), key=key, **headers)
    assert answer.status in (200, 504), answer.body
    return answer


def computed(live: LiveServer) -> int:
    stats = live.run(live.service.engine.run(lambda engine: engine.stats()))
    return stats.computed_tokens


def words(answer: Answer) -> Any:
    """An answer without ids, times, marks and what was read or written."""
    if answer.headers["content-type"].startswith("application/json"):
        return plain(answer.json)
    return [(name, data if data == "[DONE]" else plain(json.loads(data))) for name, data in answer.events]


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(part) for part in value]
    if not isinstance(value, dict):
        return value
    left_out = {"id", "created", "response_cache", "prompt_tokens_details", "cache_creation"}
    found = {name: plain(part) for name, part in value.items() if name not in left_out}
    if "cache_read_input_tokens" in found:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        found["input_tokens"] = sum(found.pop(name) for name in names)
    return found


SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"logprobs": True, "top_logprobs": 2}),
    ("chat", {"n": 3, "temperature": 1, "seed": 7}),
    ("completion", {"echo": True, "logprobs": 3}),
    ("completion", {"prompt": ["one", "two"], "n": 2, "stop": ["e"]}),
    ("completion", {"prompt": [5, 6, 7], "best_of": 3, "seed": 1, "temperature": 1}),
    ("completion", {"echo": True, "logprobs": 1, "max_tokens": 0}),
    ("message", {"stop_sequences": ["a"], "max_tokens": 9}),
    ("message", {"temperature": 0.9, "seed": 3}),
]


@pytest.mark.parametrize(("kind", "fields"), SHAPES)
def test_a_repeat_is_the_same_answer_with_nothing_computed(
    cached: LiveServer, kind: str, fields: dict[str, Any]
) -> None:
    first = ask(cached, kind, **fields)
    before = computed(cached)
    second = ask(cached, kind, **fields)

    assert (first.headers[MARK], second.headers[MARK]) == ("miss", "hit")
    assert computed(cached) == before
    assert words(second) == words(first)
    usage = second.json["usage"]
    assert usage["response_cache"] == "hit"
    assert "response_cache" not in first.json["usage"]
    if kind == "message":
        assert (usage["input_tokens"], usage["cache_creation_input_tokens"]) == (0, 0)
    else:
        details = usage["prompt_tokens_details"]
        assert (details["cached_tokens"], details["cache_write_tokens"]) == (usage["prompt_tokens"], 0)
    assert second.headers["foreword-cached-tokens"] == second.headers["foreword-prompt-tokens"]


@pytest.mark.parametrize("kind", CALLS)
def test_a_stored_answer_is_streamed_as_it_was_made(cached: LiveServer, kind: str) -> None:
    fields: dict[str, Any] = {"stream": True, "max_tokens": 20}
    if kind != "message":
        fields |= {"stream_options": {"include_usage": True}, "logprobs": kind == "chat" or 2}
    whole = ask(cached, kind, max_tokens=20, **({} if kind == "message" else {"logprobs": fields["logprobs"]}))
    before = computed(cached)

    hit = ask(cached, kind, **fields)
    fresh = ask(cached, kind, control="no-cache", **fields)

    assert (whole.headers[MARK], hit.headers[MARK], fresh.headers[MARK]) == ("miss", "hit", "miss")
    assert words(hit) == words(fresh)
    assert len(hit.events) > 15
    assert computed(cached) > before  # by no-cache
    assert b'"response_cache":"hit"' in hit.body
    assert b"response_cache" not in fresh.body


def test_what_may_have_another_answer_is_computed_each_time(cached: LiveServer) -> None:
    answers = [ask(cached, "completion", temperature=1) for _ in range(2)]

    assert [answer.headers[MARK] for answer in answers] == ["bypass", "bypass"]
    assert cached.service.responses is not None
    assert cached.service.responses.num_entries == 0


def test_what_only_warms_always_reaches_the_engine(cached: LiveServer) -> None:
    marks = [ask(cached, "message", max_tokens=0).headers[MARK] for _ in range(2)]

    assert marks == ["bypass", "bypass"]


def test_a_server_without_the_flag_says_nothing(server: LiveServer) -> None:
    answers = [ask(server, "completion", "unmarked") for _ in range(2)]

    assert all(MARK not in answer.headers for answer in answers)
    assert answers[1].json["usage"]["prompt_tokens_details"]["cached_tokens"] == len("unmarked") - 1
    assert ask(server, "completion", "unmarked", control="only-if-cached").status == 504


def test_cache_control_is_obeyed(cached: LiveServer) -> None:
    def mark(text: str, control: str = "") -> str:
        return ask(cached, "completion", text, control=control).headers[MARK]

    assert [mark("a", "no-store"), mark("a", "no-store"), mark("a"), mark("a")] == ["miss", "miss", "miss", "hit"]
    assert mark("a", "no-store") == "hit"  # nothing is stored by that
    assert [mark("a", "no-cache"), mark("a", "max-age=100"), mark("a", "max-age=0, no-store")] == [
        "miss",
        "hit",
        "miss",
    ]
    assert mark("a", "only-if-cached") == "hit"


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("fields", [{}, {"temperature": 1}])
def test_only_if_cached_is_a_504_of_the_dialect(cached: LiveServer, kind: str, fields: dict[str, Any]) -> None:
    before = computed(cached)

    answer = ask(cached, kind, control="only-if-cached", **fields)

    assert answer.status == 504
    error = answer.json["error"]
    assert error["type"] == ("timeout_error" if kind == "message" else "server_error")
    assert "only-if-cached" in error["message"]
    assert computed(cached) == before


def test_reset_forgets_answers_too(tiny: str, tmp_path: Any) -> None:
    keyed = Keyed(tiny, tmp_path, limits=CACHED)
    keyed.live.start()
    try:
        asked = [ask(keyed.live, "completion", key=keyed.keys["alice"]).headers[MARK] for _ in range(2)]
        responses = keyed.live.service.responses
        assert responses is not None
        wait_for(lambda: not responses.flights)
        stats = send(keyed.live.port, "GET", "/cache/stats", key=keyed.keys["ops"]).json["response_cache"]
        send(keyed.live.port, "POST", "/cache/reset", {}, key=keyed.keys["ops"])

        assert asked == ["miss", "hit"]
        assert stats["entries"] == 1
        assert stats["bytes"] > 500
        assert ask(keyed.live, "completion", key=keyed.keys["alice"]).headers[MARK] == "miss"
    finally:
        keyed.live.stop()


def test_no_tenant_is_given_what_another_was_answered(tiny: str, tmp_path: Any) -> None:
    keyed = Keyed(tiny, tmp_path, limits=CACHED)
    keyed.live.start()
    try:
        for kind in CALLS:
            text = f"{kind} has a secret"
            first = ask(keyed.live, kind, text, key=keyed.keys["alice"])
            others = [
                ask(keyed.live, kind, text, key=keyed.keys["bob"], **fields)
                for fields in ({}, {"cache_salt": "alice"}, {"cache_salt": keyed.keys["alice"]})
            ]
            own = [ask(keyed.live, kind, text, key=keyed.keys[who]) for who in ("alice", "alice2")]
            salted = [ask(keyed.live, kind, text, key=keyed.keys["alice"], cache_salt="s") for _ in range(2)]

            assert first.headers[MARK] == "miss"
            assert [answer.headers[MARK] for answer in others] == ["miss"] * 3
            assert int(others[0].headers["foreword-cached-tokens"]) <= OPENING  # bob's own, of another kind
            assert ask(keyed.live, kind, text, key=keyed.keys["bob"], control="only-if-cached").status == 200
            assert [answer.headers[MARK] for answer in own] == ["hit", "hit"]
            assert [answer.headers[MARK] for answer in salted] == ["miss", "hit"]
        keyed.live.check_idle()
    finally:
        keyed.live.stop()


CHANGES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "completion": [
        ({}, {"max_tokens": 5}),
        ({}, {"n": 2}),
        ({}, {"best_of": 2}),
        ({}, {"echo": True}),
        ({}, {"logprobs": 1}),
        ({}, {"stop": "x"}),
        ({"seed": 1, "temperature": 1}, {"seed": 2, "temperature": 1}),
        ({"seed": 1, "temperature": 1}, {"seed": 1, "temperature": 0.5}),
        ({}, {"logit_bias": {"5": 1}}),
        ({}, {"top_k": 1}),
        ({}, {"top_p": 0.5}),
        ({}, {"min_p": 0.5}),
        ({}, {"presence_penalty": 1}),
        ({}, {"frequency_penalty": 1}),
        ({}, {"repetition_penalty": 1.5}),
        ({}, {"min_tokens": 1}),
        ({}, {"stop_token_ids": [5]}),
        ({}, {"ignore_eos": True}),
        ({}, {"skip_special_tokens": False}),
        ({}, {"cache_salt": "s"}),
    ],
    "chat": [
        ({}, {"messages": [{"role": "system", "content": "hi"}]}),
        ({}, {"messages": [{"role": "user", "content": "hi", "name": "bob"}]}),
        ({}, {"top_logprobs": 1, "logprobs": True}),
        ({"logprobs": True}, {"top_logprobs": 1, "logprobs": True}),
        ({}, {"chat_template_kwargs": {"a": 1}}),
        ({}, {"max_completion_tokens": 3}),
        ({}, {"tools": []}),
        ({}, {"response_format": {"type": "text"}}),
        ({}, {"tool_choice": "none"}),
    ],
    "message": [
        ({}, {"system": "hi"}),
        ({}, {"stop_sequences": ["x"]}),
        ({}, {"top_k": 1}),
        ({}, {"top_p": 0.5}),
        ({}, {"tools": []}),
        ({}, {"cache_control": {"type": "ephemeral"}}),
    ],
}


@pytest.mark.parametrize("kind", CALLS)
def test_requests_that_differ_in_a_field_never_share_an_answer(cached: LiveServer, kind: str) -> None:
    for number, (one, other) in enumerate(CHANGES[kind]):
        text = f"pair {number}"

        def asked(fields: dict[str, Any], text: str = text) -> str:
            return ask(cached, kind, text, **({"cache_salt": f"{text}"} | fields)).headers[MARK]

        assert [asked(one), asked(other), asked(one), asked(other)] == ["miss", "miss", "hit", "hit"], other


@pytest.mark.parametrize("kind", CALLS)
def test_requests_that_differ_in_how_they_are_sent_share_one(cached: LiveServer, kind: str) -> None:
    ask(cached, kind, "shared")
    told: dict[str, Any] = {"metadata": {"a": "b"}} if kind != "completion" else {"user": "me"}

    assert ask(cached, kind, "shared", **told).headers[MARK] == "hit"
    assert ask(cached, kind, "shared", stream=True).headers[MARK] == "hit"


# -- the same, for any sequence of requests ------------------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any], str]:
    """A request for one of few prompts, so that many are repeats, and what it wants of the cache."""
    kind = draw(st.sampled_from(sorted(CALLS)))
    fields: dict[str, Any] = {"max_tokens": draw(st.integers(1, 4)), "stream": draw(st.booleans())}
    if draw(st.booleans()):
        fields |= {"temperature": 1, "seed": draw(st.integers(0, 1))}
    turns = [{"role": "user", "content": draw(st.sampled_from(["a", "bc"]))}]
    if draw(st.booleans()):
        turns += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "d"}]
    fields |= {"prompt": turns[0]["content"]} if kind == "completion" else {"messages": turns}
    if kind != "message" and draw(st.booleans()):
        fields["n"] = 2
    return kind, fields, draw(st.sampled_from(["", "", "", "no-store", "no-cache"]))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(requests(), min_size=2, max_size=12))
def test_a_server_with_a_response_cache_answers_as_one_without(
    cached: LiveServer, server: LiveServer, asked: list[tuple[str, dict[str, Any], str]]
) -> None:
    for kind, fields, control in asked:
        given_again, made = (ask(live, kind, control=control, **fields) for live in (cached, server))

        assert given_again.status == made.status == 200
        assert in_order(words(given_again)) == in_order(words(made))


def in_order(told: Any) -> Any:
    """Events with those of several choices, which come in no order of their own, one choice after the other."""
    if not isinstance(told, list):
        return told
    return sorted(told, key=lambda event: index_of(event[1]))


def index_of(event: Any) -> int:
    choices = event.get("choices") if isinstance(event, dict) else None
    return choices[0]["index"] if choices else -1 if isinstance(event, dict) else 99


def test_an_answer_given_again_is_remembered_for_the_next_turn(cached: LiveServer, server: LiveServer) -> None:
    turns: list[dict[str, str]] = [{"role": "user", "content": "remember"}]
    for live in (cached, server):
        live.service.prompts._turns._answers.clear()
    said = [ask(live, "chat", messages=turns).json["choices"][0]["message"]["content"] for live in (cached, server)]
    cached.service.prompts._turns._answers.clear()
    ask(cached, "chat", messages=turns)
    turns += [{"role": "assistant", "content": said[0]}, {"role": "user", "content": "go on"}]

    answers = [words(ask(live, "chat", messages=turns)) for live in (cached, server)]

    assert said[0] == said[1]
    assert answers[0] == answers[1]
    assert answers[0]["usage"] == answers[1]["usage"]


# -- at the same time ----------------------------------------------------------------------------------------------


class Held:
    """Lets an engine's steps wait, so that requests meet."""

    def __init__(self, live: LiveServer) -> None:
        self.gate = threading.Event()
        self.fails = 0
        runner = live.service.loaded.engine._runner
        execute = runner.execute

        def held(*args: Any) -> Any:
            assert self.gate.wait(20)
            if self.fails:
                self.fails -= 1
                raise RuntimeError("injected")
            return execute(*args)

        runner.execute = held  # type: ignore[method-assign, assignment]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def at_once(live: LiveServer, held: Held, kinds: list[dict[str, Any]]) -> list[Answer]:
    """Send requests that all wait before the first of them is computed."""
    with ThreadPoolExecutor(len(kinds)) as pool:
        futures = []
        for number, fields in enumerate(kinds):
            futures.append(pool.submit(send, live.port, "POST", "/v1/completions", completion_body("once", **fields)))
            wait_for(lambda number=number: live.service.admission.num_requests == number + 1)  # type: ignore[misc]
        responses = live.service.responses
        assert responses is not None
        wait_for(lambda: sum(len(f._readers) for f in responses.flights.values()) == len(kinds))
        held.gate.set()
        return [future.result() for future in futures]


def test_identical_requests_at_the_same_time_are_computed_once(start_server: StartServer) -> None:
    live = start_server(limits=CACHED)
    held = Held(live)
    before = computed(live)

    answers = at_once(live, held, [{}, {}, {"stream": True}, {}])

    assert [answer.headers[MARK] for answer in answers] == ["miss", "shared", "shared", "shared"]
    assert words(answers[0]) == words(answers[1]) == words(answers[3])
    assert answers[1].json["usage"]["response_cache"] == "shared"
    assert answers[1].json["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert answers[0].json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert computed(live) - before == 4 + 3
    assert ask(live, "completion", "once").headers[MARK] == "hit"
    live.check_idle()


def test_the_others_get_their_answer_when_the_first_leaves(start_server: StartServer) -> None:
    live = start_server(limits=CACHED)
    held = Held(live)
    responses = live.service.responses
    assert responses is not None
    first = socket.create_connection(("127.0.0.1", live.port), timeout=10)
    first.sendall(request_bytes("/v1/completions", completion_body("once")))
    wait_for(lambda: len(responses.flights) == 1)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(ask, live, "completion", "once")
        wait_for(lambda: any(len(flight._readers) == 2 for flight in responses.flights.values()))
        first.close()
        wait_for(lambda: any(len(flight._readers) == 1 for flight in responses.flights.values()))
        held.gate.set()
        answer = second.result()

    assert answer.headers[MARK] == "shared"
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert ask(live, "completion", "once").headers[MARK] == "hit"
    live.check_idle()


def test_when_all_leave_nothing_is_computed_on_or_stored(start_server: StartServer) -> None:
    live = start_server(limits=CACHED)
    held = Held(live)
    responses = live.service.responses
    assert responses is not None
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as first:
        first.sendall(request_bytes("/v1/completions", completion_body("once", max_tokens=400, ignore_eos=True)))
        wait_for(lambda: len(responses.flights) == 1)
    wait_for(lambda: not any(flight.can_board for flight in responses.flights.values()))
    held.gate.set()
    live.check_idle()

    wait_for(lambda: not responses.flights)
    assert responses.num_entries == 0
    assert computed(live) < 20


def test_a_failed_step_ends_the_first_and_the_others_are_computed_anew(start_server: StartServer) -> None:
    live = start_server(limits=CACHED)
    held = Held(live)
    held.fails = 2

    answers = at_once(live, held, [{}, {}, {}, {"stream": True}])

    assert sorted(answer.status for answer in answers) == [200, 200, 500, 500]
    assert answers[0].status == 500
    assert {answer.headers[MARK] for answer in answers if answer.status == 200} <= {"miss", "shared"}
    assert ask(live, "completion", "once").headers[MARK] == "hit"
    responses = live.service.responses
    assert responses is not None
    wait_for(lambda: not responses.flights)
    assert responses.num_entries == 1
    live.check_idle()


def test_the_servers_end_ends_all_who_read_along(start_server: StartServer) -> None:
    live = start_server(limits=Limits(response_cache_bytes=1 << 20, grace_s=0.1))
    held = Held(live)
    responses = live.service.responses
    assert responses is not None
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(ask_status, live) for _ in range(2)]
        wait_for(lambda: any(len(flight._readers) == 2 for flight in responses.flights.values()))
        live.loop.call_soon_threadsafe(live.server.drain)
        statuses = [future.result() for future in futures]
        held.gate.set()

    assert statuses == [503, 503]
    assert responses.num_entries == 0


def ask_status(live: LiveServer) -> int:
    return send(live.port, "POST", "/v1/completions", completion_body("once")).status


def test_metrics_tell_what_the_cache_did_and_the_engines_stay_the_engines(cached: LiveServer) -> None:
    def metric(name: str) -> float:
        text = send(cached.port, "GET", "/metrics").body.decode()
        (line,) = [line for line in text.splitlines() if line.startswith(name)]
        return float(line.rpartition(" ")[2])

    outcome = 'foreword:response_cache_requests_total{{model_name="tiny",outcome="{}"}}'
    names = [
        *(outcome.format(word) for word in ("hit", "miss", "shared", "bypass")),
        'foreword:response_cache_tokens_total{kind="prompt",model_name="tiny"}',
        'foreword:response_cache_tokens_total{kind="generation",model_name="tiny"}',
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "foreword:prompt_tokens_written_total",
        "foreword:response_cache_entries",
    ]
    before = [metric(name) for name in names]

    for _ in range(3):
        ask(cached, "completion", "metrics!", max_tokens=2)
    ask(cached, "completion", "metrics?", temperature=1, max_tokens=2)

    responses = cached.service.responses
    assert responses is not None
    wait_for(lambda: not responses.flights)
    after = [metric(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 1, 0, 1, 16, 4, 16, 4, 9, 1]
