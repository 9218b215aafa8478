"""`--emulate` over HTTP: clients are told what the provider would tell them; the engine computes as ever."""

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from foreword.server.cache_policy.emulation import Emulation
from tests.server.conftest import LiveServer, StartServer
from tests.server.wire import chat_body, completion_body, message_body, send

EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
HEADER = 1 + len("assistant\n")  # what begins an answer: counted by both providers, cached by neither


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def text(words: str, control: dict[str, str] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": words} | ({"cache_control": control} if control else {})


def counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    """Read, written, and of these for an hour; the three sum up to the prompt with what is neither."""
    creation = usage["cache_creation"]
    assert sum(creation.values()) == usage["cache_creation_input_tokens"]
    hour = creation["ephemeral_1h_input_tokens"]
    return usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"], hour


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def claude(start_server: StartServer, clock: Clock) -> LiveServer:
    return start_server(emulation=Emulation("anthropic", minimum=16, clock=clock))


def chatgpt(start_server: StartServer, clock: Clock, model: str, **settings: Any) -> Callable[..., Any]:
    """Asks a server that emulates OpenAI under a model's name; gives total, read and written."""
    server = start_server(emulation=Emulation("openai", clock=clock, **settings), names=[model])

    def ask(path: str, body: dict[str, Any]) -> tuple[int, int, int]:
        answer = send(server.port, "POST", path, body | {"model": model})
        assert answer.status == 200, answer.body
        usage = answer.json["usage"]
        details = usage["prompt_tokens_details"]
        return usage["prompt_tokens"], details["cached_tokens"], details["cache_write_tokens"]

    return ask


def test_without_a_marker_nothing_is_counted_and_the_engine_reads_all_the_same(claude: LiveServer) -> None:
    for _ in range(2):
        answer = send(claude.port, "POST", "/v1/messages", message_body("hello there, again and again"))

    assert counts(answer.json["usage"]) == (0, 0, 0)
    assert answer.json["usage"]["input_tokens"] == int(answer.headers["foreword-prompt-tokens"])
    assert int(answer.headers["foreword-cached-tokens"]) == int(answer.headers["foreword-prompt-tokens"]) - 1


def test_input_tokens_are_what_lies_behind_the_last_breakpoint(claude: LiveServer) -> None:
    body = message_body(messages=[{"role": "user", "content": [text("x" * 50, EPHEMERAL)]}])

    usage = send(claude.port, "POST", "/v1/messages", body).json["usage"]

    assert usage["input_tokens"] == HEADER
    assert usage["cache_creation_input_tokens"] == 1 + len("user\n") + 50 + 2


@pytest.mark.parametrize("stream", [False, True])
def test_the_worked_case_of_the_lookback_with_the_official_client(claude: LiveServer, stream: bool) -> None:
    def turn(count: int, *marked: int) -> tuple[int, int]:
        blocks: list[Any] = [text(f"{i:05}", EPHEMERAL if i in marked else None) for i in range(count)]
        fields: dict[str, Any] = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": blocks}]}
        with anthropic.Anthropic(base_url=claude.url, api_key="none", max_retries=0) as client:
            if stream:
                with client.messages.stream(**fields) as events:
                    usage: Any = events.get_final_message().usage
            else:
                usage = client.messages.create(**fields).usage
        return usage.cache_read_input_tokens, usage.cache_creation_input_tokens

    def end(count: int) -> int:
        return 1 + len("user\n") + 6 * count - 1

    assert turn(10, 9) == (0, end(10) + 2)
    read, written = turn(15, 9, 14)
    assert (read, written) == (0, end(15) + 2)  # as its last block, the tenth had ended the message
    assert turn(35, 34) == (0, end(35) + 2)
    assert turn(40, 19, 39) == (end(10), end(40) + 2 - end(10))


def test_lifetimes_pass_and_begin_anew_with_each_use(claude: LiveServer, clock: Clock) -> None:
    body = message_body("who?", system=[text("rules " * 10, HOUR), text("more " * 10, EPHEMERAL)])
    first = counts(send(claude.port, "POST", "/v1/messages", body).json["usage"])
    clock.now += 299
    within = counts(send(claude.port, "POST", "/v1/messages", body).json["usage"])
    clock.now += 301
    after = counts(send(claude.port, "POST", "/v1/messages", body).json["usage"])

    rules = 1 + len("system\n") + 60
    assert first == (0, rules + 1 + 50 + 2, rules)
    assert within == (first[1], 0, 0)
    assert after == (rules, 1 + 50 + 2, 0)


def test_a_prewarmed_prompt_is_read(claude: LiveServer) -> None:
    body = message_body("placeholder", system=[text("rules " * 10, EPHEMERAL)])
    warm = send(claude.port, "POST", "/v1/messages", body | {"max_tokens": 0}).json["usage"]

    usage = send(claude.port, "POST", "/v1/messages", body).json["usage"]

    assert counts(usage)[0] == counts(warm)[1] > 60


def test_a_prompt_under_the_minimum_is_explained(start_server: StartServer) -> None:
    server = start_server(emulation=Emulation("anthropic"))
    body = message_body("short", cache_control=EPHEMERAL)

    usages = [counts(send(server.port, "POST", "/v1/messages", body).json["usage"]) for _ in range(2)]
    explained = send(server.port, "POST", "/cache/explain", {"model": "tiny", "prompt": "short"}).json

    assert usages == [(0, 0, 0)] * 2
    assert explained["cause"] == "under minimum"


def test_openais_worked_case_in_small(start_server: StartServer, clock: Clock) -> None:
    ask = chatgpt(start_server, clock, "gpt-5.6", minimum=16)
    turns: list[Any] = [{"role": "user", "content": "a" * 120}]

    first = ask("/v1/chat/completions", chat_body(messages=turns))
    turns += [{"role": "assistant", "content": "b" * 10}, {"role": "user", "content": "c" * 30}]
    second = ask("/v1/chat/completions", chat_body(messages=turns))

    assert first[1:] == (0, first[0] - HEADER)
    assert second[1:] == (first[2], second[0] - HEADER - first[2])


def test_openais_keys_and_modes(start_server: StartServer, clock: Clock) -> None:
    ask = chatgpt(start_server, clock, "gpt-5.6", minimum=16)
    body = chat_body("a" * 50)
    explicit = {"prompt_cache_options": {"mode": "explicit"}}

    first = ask("/v1/chat/completions", body | {"prompt_cache_key": "a"})
    assert ask("/v1/chat/completions", body | {"prompt_cache_key": "b"}) == first
    assert ask("/v1/chat/completions", body | {"prompt_cache_key": "a"}) == (first[0], first[2], 0)
    assert ask("/v1/chat/completions", body | explicit) == (first[0], 0, 0)
    clock.now += 1800
    assert ask("/v1/chat/completions", body | {"prompt_cache_key": "a"}) == first


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_earlier_models_count_by_128(start_server: StartServer, clock: Clock, path: str) -> None:
    ask = chatgpt(start_server, clock, "gpt-4o", minimum=128)
    body = chat_body("a" * 200) if "chat" in path else completion_body("a" * 200)

    first, second = ask(path, body), ask(path, body)

    assert first[1:] == (0, 0)
    assert second == (first[0], first[0] // 128 * 128, 0)


def test_a_completions_only_breakpoint_is_its_end(start_server: StartServer, clock: Clock) -> None:
    ask = chatgpt(start_server, clock, "gpt-5.6", minimum=16)

    assert ask("/v1/completions", completion_body(["a" * 40, "b" * 30])) == (70, 0, 70)
    assert ask("/v1/completions", completion_body("a" * 40)) == (40, 40, 0)
    assert ask("/v1/completions", completion_body("a" * 41)) == (41, 0, 41)


def test_openais_client_is_told_the_same_in_a_stream(start_server: StartServer, clock: Clock) -> None:
    server = start_server(emulation=Emulation("openai", minimum=16, clock=clock), names=["gpt-5.6"])
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        fields: dict[str, Any] = {"model": "gpt-5.6", "max_tokens": 2}
        fields["messages"] = [{"role": "user", "content": "a" * 50}]
        client.chat.completions.create(**fields)
        *_, last = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})

    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens - HEADER
    assert last.usage.prompt_tokens_details.cache_write_tokens == 0


def test_another_providers_routes_tell_the_engines_own_account(claude: LiveServer) -> None:
    for _ in range(2):
        usage = send(claude.port, "POST", "/v1/chat/completions", chat_body("hello there")).json["usage"]

    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
