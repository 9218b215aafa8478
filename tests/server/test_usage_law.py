"""One account in every dialect: first writes, second reads, and T = R + W + U, as the engine itself counts (B6)."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import LiveServer
from tests.server.wire import Answer, chat_body, completion_body, message_body, response_body, send

SALTS = itertools.count()


@pytest.fixture(scope="module", params=["int16", "f16"])
def _stored(request: pytest.FixtureRequest, tiny: str) -> Iterator[LiveServer]:
    live = LiveServer(tiny, kv_dtype=request.param)
    live.start()
    yield live
    live.stop()


@pytest.fixture
def server(_stored: LiveServer) -> Iterator[LiveServer]:
    """A server that stores K and V so, idle before and after."""
    yield _stored
    _stored.check_idle()


@dataclass(frozen=True)
class Account:
    """Total, read, written."""

    total: int
    read: int
    written: int


def openai_account(usage: dict[str, Any]) -> Account:
    details = usage["prompt_tokens_details"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Account(usage["prompt_tokens"], details["cached_tokens"], details["cache_write_tokens"])


def anthropic_account(usage: dict[str, Any]) -> Account:
    read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    return Account(usage["input_tokens"] + read + written, read, written)


def openai_stream(answer: Answer) -> Account:
    *_, last, done = answer.events
    assert done[1] == "[DONE]"
    return openai_account(json.loads(last[1])["usage"])


def anthropic_stream(answer: Answer) -> Account:
    events = dict(answer.events)
    ends = (json.loads(events["message_start"])["message"]["usage"], json.loads(events["message_delta"])["usage"])
    first, last = map(anthropic_account, ends)
    assert first == last
    return last


def response_account(usage: dict[str, Any]) -> Account:
    details = usage["input_tokens_details"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return Account(usage["input_tokens"], details["cached_tokens"], details["cache_write_tokens"])


def response_stream(answer: Answer) -> Account:
    (_, last) = answer.events[-1]
    return response_account(json.loads(last)["response"]["usage"])


def limit(dialect: str, num_tokens: int) -> dict[str, Any]:
    """The most tokens of an answer, in the dialect's words."""
    return {"max_output_tokens" if dialect.startswith("response") else "max_tokens": num_tokens}


KEPT = {"prompt_cache_key": "law", "prompt_cache_options": {"ttl": "30m"}}
MARKED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
INCLUDED = {"stream": True, "stream_options": {"include_usage": True}}
DIALECTS: dict[str, tuple[str, Callable[..., dict[str, Any]], dict[str, Any], Callable[[Answer], Account]]] = {
    "chat": ("/v1/chat/completions", chat_body, {}, lambda a: openai_account(a.json["usage"])),
    "chat, n": ("/v1/chat/completions", chat_body, {"n": 3}, lambda a: openai_account(a.json["usage"])),
    "chat, kept": ("/v1/chat/completions", chat_body, KEPT, lambda a: openai_account(a.json["usage"])),
    "chat stream": ("/v1/chat/completions", chat_body, INCLUDED, openai_stream),
    "completion": ("/v1/completions", completion_body, {}, lambda a: openai_account(a.json["usage"])),
    "completion stream": ("/v1/completions", completion_body, INCLUDED, openai_stream),
    "message": ("/v1/messages", message_body, {}, lambda a: anthropic_account(a.json["usage"])),
    "message, marked": ("/v1/messages", message_body, MARKED, lambda a: anthropic_account(a.json["usage"])),
    "message stream": ("/v1/messages", message_body, {"stream": True}, anthropic_stream),
    "response": ("/v1/responses", response_body, {}, lambda a: response_account(a.json["usage"])),
    "response, kept": ("/v1/responses", response_body, KEPT, lambda a: response_account(a.json["usage"])),
    "response stream": ("/v1/responses", response_body, {"stream": True}, response_stream),
}


def ask(server: LiveServer, dialect: str, text: str, salt: str) -> Account:
    path, body, fields, read = DIALECTS[dialect]
    answer = send(server.port, "POST", path, body(text, **limit(dialect, 1), cache_salt=salt, **fields))
    assert answer.status == 200, answer.body
    found = read(answer)
    if "foreword-cached-tokens" in answer.headers:
        assert int(answer.headers["foreword-prompt-tokens"]) == found.total
        assert int(answer.headers["foreword-cached-tokens"]) == found.read
        assert int(answer.headers["foreword-written-tokens"]) == found.written
    return found


TEXTS = st.text(st.sampled_from("abc"), min_size=1, max_size=80)
CHATS = st.sampled_from([name for name in sorted(DIALECTS) if not name.startswith("completion")])
COMPLETIONS = st.sampled_from(["completion", "completion stream"])
OPENING = 1 + len("user\n")  # of a chat prompt: one special token, then a token a letter


def known_tokens(first: str, second: str, *, is_chat: bool) -> int | None:
    """Leading tokens of the second prompt that the first has left in the cache; None for all of them."""
    length = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if first == second or (length is None and not is_chat and len(second) < len(first)):
        return None
    return (OPENING if is_chat else 0) + (min(len(first), len(second)) if length is None else length)


PAIRS = 2000 if settings.default is not None and settings.default.max_examples >= 400 else 40


@settings(max_examples=PAIRS, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(dialects=st.one_of(st.tuples(CHATS, CHATS), st.tuples(COMPLETIONS, COMPLETIONS)), texts=st.data())
def test_first_writes_second_reads(server: LiveServer, dialects: tuple[str, str], texts: st.DataObject) -> None:
    start = texts.draw(TEXTS)
    asked = [start + texts.draw(st.one_of(st.just(""), TEXTS)) for _ in range(2)]
    salt, engine = f"law {next(SALTS)}", server.service.engine
    before = server.run(engine.run(lambda e: e.stats()))

    first, second = (ask(server, dialect, text, salt) for dialect, text in zip(dialects, asked, strict=True))

    after = server.run(engine.run(lambda e: e.stats()))
    assert first == Account(first.total, 0, first.total)
    known = known_tokens(asked[0], asked[1], is_chat=not dialects[0].startswith("completion"))
    if known is None:
        assert second == Account(second.total, second.total - 1, 0)
    else:
        assert second == Account(second.total, known, second.total - known)
    if not any(name.endswith(", n") for name in dialects):  # forks of one prompt read it too, for themselves
        assert after.cached_tokens - before.cached_tokens == second.read
        assert after.prefilled_tokens - before.prefilled_tokens == first.total + second.total - second.read


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_repeat_reads_all_but_the_last_token_and_writes_nothing(server: LiveServer, dialect: str) -> None:
    text, salt = "the same words again", f"repeat {dialect}"

    first, second, third = (ask(server, dialect, text, salt) for _ in range(3))

    assert first == Account(first.total, 0, first.total)
    assert second == third == Account(first.total, first.total - 1, 0)


@pytest.mark.parametrize(("shared", "rest"), [(1, 40), (15, 3), (16, 1), (17, 30), (48, 1)])
def test_what_two_prompts_begin_with_is_read_to_the_token(server: LiveServer, shared: int, rest: int) -> None:
    salt = f"shared {shared} {rest}"

    first = ask(server, "completion", "s" * shared + "a" * rest, salt)
    second = ask(server, "completion", "s" * shared + "b" * rest, salt)

    assert first == Account(shared + rest, 0, shared + rest)
    assert second == Account(shared + rest, shared, rest)


def test_a_list_of_prompts_has_the_account_of_all(server: LiveServer) -> None:
    body = completion_body(["same text here", "same text here", "other"], max_tokens=1, cache_salt="list")

    usage = openai_account(send(server.port, "POST", "/v1/completions", body).json["usage"])
    again = openai_account(send(server.port, "POST", "/v1/completions", body).json["usage"])

    assert usage.total == 14 + 14 + 5
    assert usage.read + usage.written <= usage.total
    assert again == Account(usage.total, usage.total - 3, 0)


def test_a_chats_next_turn_reads_the_answer_it_was_given(server: LiveServer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    body = chat_body(messages=messages, max_tokens=20, cache_salt="turns", ignore_eos=True)
    first = send(server.port, "POST", "/v1/chat/completions", body).json
    said = first["choices"][0]["message"]["content"]

    body["messages"] = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
    usage = send(server.port, "POST", "/v1/chat/completions", body).json["usage"]

    # The last token drawn was never computed; all before it is read.
    assert usage["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"] + 19
