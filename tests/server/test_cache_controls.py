"""Breakpoints and lifetimes as clients ask for them: where they lie, what they keep, how they count."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.server.conftest import MODEL, LiveServer
from tests.server.wire import chat_body, message_body, send

OPENING = 1 + len("user\n")  # of a turn: one special token, then a token a letter
CLOSING = 2  # its end: one special token and a line feed
EPHEMERAL = {"type": "ephemeral"}


@pytest.fixture
def fresh(server: LiveServer) -> LiveServer:
    """The shared server with nothing stored."""
    server.run(server.service.engine.run(lambda engine: engine.reset_cache()))
    return server


def kept_blocks(server: LiveServer) -> int:
    """Blocks that are kept by a lifetime now."""

    def count(engine: Any) -> int:
        found = engine._manager.prefix_cache._retention.num_hinted_blocks
        assert isinstance(found, int)
        return found

    return server.run(server.service.engine.run(count))


def blocks(num_tokens: int, server: LiveServer) -> int:
    return -(-num_tokens // server.service.loaded.summary.block_size)


def block(text: str, **control: Any) -> dict[str, Any]:
    return {"type": "text", "text": text} | ({"cache_control": EPHEMERAL | control} if control else {})


def test_what_is_marked_is_kept_to_the_end_of_its_block(fresh: LiveServer) -> None:
    system = [block("s" * 40, ttl="1h"), block("unmarked" * 20)]

    usage = send(fresh.port, "POST", "/v1/messages", message_body("hi", system=system)).json["usage"]

    marked = 1 + len("system\n") + 40
    assert kept_blocks(fresh) == blocks(marked, fresh)
    assert usage["cache_creation"]["ephemeral_1h_input_tokens"] == marked
    assert usage["cache_creation"]["ephemeral_5m_input_tokens"] == usage["cache_creation_input_tokens"] - marked


def test_an_hours_writes_count_from_where_reading_ended(fresh: LiveServer) -> None:
    first = message_body(system=[block("a" * 30, ttl="1h")])
    second = message_body(system=[block("a" * 30), block("b" * 30, ttl="1h"), block("c" * 30, ttl="5m")])

    one = send(fresh.port, "POST", "/v1/messages", first).json["usage"]
    two = send(fresh.port, "POST", "/v1/messages", second).json["usage"]

    start = 1 + len("system\n") + 30
    assert one["cache_creation"]["ephemeral_1h_input_tokens"] == start + CLOSING
    assert two["cache_read_input_tokens"] == start
    assert two["cache_creation"]["ephemeral_1h_input_tokens"] == 1 + 30  # a line feed between two blocks
    creation = two["cache_creation"]
    assert sum(creation.values()) == two["cache_creation_input_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_automatic_breakpoint_covers_the_last_block_and_moves_on(fresh: LiveServer, stream: bool) -> None:
    turns: list[Any] = [{"role": "user", "content": "one" * 20}]
    send(fresh.port, "POST", "/v1/messages", message_body(messages=turns, cache_control=EPHEMERAL, stream=stream))
    before = kept_blocks(fresh)
    turns += [{"role": "assistant", "content": "two" * 20}, {"role": "user", "content": "three" * 20}]

    send(fresh.port, "POST", "/v1/messages", message_body(messages=turns, cache_control=EPHEMERAL, stream=stream))

    assert before == blocks(OPENING + 60 + CLOSING, fresh)
    spoken = OPENING + 60 + CLOSING + len("assistant") - len("user") + OPENING + 60 + CLOSING + OPENING + 100 + CLOSING
    assert kept_blocks(fresh) == blocks(spoken, fresh) + 1  # the two prompts part inside a block: each has its own


def test_a_mark_inside_what_begins_the_answer_lies_there(fresh: LiveServer) -> None:
    turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": [block("Once upon a time", ttl="5m")]}]

    send(fresh.port, "POST", "/v1/messages", message_body(messages=turns))

    whole = OPENING + 2 + CLOSING + OPENING + len("assistant") - len("user") + len("Once upon a time")
    assert kept_blocks(fresh) == blocks(whole, fresh)


def test_an_openai_breakpoint_keeps_its_part_and_a_lifetime_the_prompt(fresh: LiveServer) -> None:
    parts = [
        {"type": "text", "text": "p" * 50, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}},
        {"type": "text", "text": "q" * 50},
    ]
    body = chat_body(messages=[{"role": "user", "content": parts}])

    first = send(fresh.port, "POST", "/v1/chat/completions", body).json["usage"]
    assert kept_blocks(fresh) == blocks(OPENING + 50, fresh)
    send(fresh.port, "POST", "/v1/chat/completions", body | {"prompt_cache_retention": "24h"})

    assert kept_blocks(fresh) == blocks(first["prompt_tokens"], fresh)


@pytest.mark.parametrize(
    ("fields", "keeps"),
    [
        ({}, False),
        ({"prompt_cache_key": "user 7"}, False),
        ({"prompt_cache_options": {"mode": "implicit"}}, False),
        ({"prompt_cache_options": {"ttl": "30m"}}, True),
        ({"prompt_cache_retention": "in_memory"}, True),
        ({"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "explicit"}}, False),
    ],
)
def test_the_whole_prompt_is_kept_where_a_lifetime_is_asked(
    fresh: LiveServer, fields: dict[str, Any], keeps: bool
) -> None:
    usage = send(fresh.port, "POST", "/v1/chat/completions", chat_body("words" * 20, **fields)).json["usage"]

    assert kept_blocks(fresh) == (blocks(usage["prompt_tokens"], fresh) if keeps else 0)


def test_at_most_four_breakpoints_of_a_request_are_kept(fresh: LiveServer) -> None:
    mark = {"mode": "explicit"}
    parts = [{"type": "text", "text": f"{i}" * 40, "prompt_cache_breakpoint": mark} for i in range(6)]
    body = chat_body(messages=[{"role": "user", "content": parts}], prompt_cache_options={"mode": "explicit"})
    found: list[Any] = []
    retain = fresh.service.loaded.engine._manager.prefix_cache.retain

    def watched(path: Any, num_tokens: int, priority: int, lifetime: int) -> int:
        found.append((num_tokens, lifetime))
        return retain(path, num_tokens, priority, lifetime)

    fresh.service.loaded.engine._manager.prefix_cache.retain = watched  # type: ignore[method-assign]
    try:
        send(fresh.port, "POST", "/v1/chat/completions", body)
    finally:
        fresh.service.loaded.engine._manager.prefix_cache.retain = retain  # type: ignore[method-assign]

    ends = [OPENING + 41 * (i + 1) - 1 for i in range(6)]
    ends[-1] += CLOSING
    assert sorted(found) == [(end, 1_800_000) for end in ends[2:]]


def test_a_prewarmed_prompt_is_read_by_the_next_request(fresh: LiveServer) -> None:
    body = chat_body("warm me" * 10, prompt_cache_options={"prewarm": True})

    warm = send(fresh.port, "POST", "/v1/chat/completions", body).json
    usage = send(fresh.port, "POST", "/v1/chat/completions", chat_body("warm me" * 10)).json["usage"]

    assert warm["choices"][0]["message"]["content"] == ""
    assert warm["choices"][0]["finish_reason"] == "length"
    assert warm["usage"]["completion_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cache_write_tokens"] == warm["usage"]["prompt_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_options": {"prewarm": True}, "stream": True}, "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"prewarm": True}, "n": 2}, "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"mode": "none"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_retention": "48h"}, "prompt_cache_retention"),
        ({"prompt_cache_key": "k" * 2000}, "prompt_cache_key"),
    ],
)
def test_what_openai_does_not_know_is_refused_by_name(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    answer = send(server.port, "POST", "/v1/chat/completions", chat_body(**fields))

    assert answer.status == 400
    assert answer.json["error"]["param"] == param


@pytest.fixture
def claude(fresh: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=fresh.url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def test_anthropics_client_sees_what_it_marked_written_and_read(claude: anthropic.Anthropic) -> None:
    def ask(question: str) -> anthropic.types.Usage:
        return claude.messages.create(
            model=MODEL,
            max_tokens=2,
            system=[{"type": "text", "text": "Rules. " * 20, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            messages=[{"role": "user", "content": question}],
        ).usage

    first, second = ask("Who?"), ask("Where?")

    rules = 1 + len("system\n") + len("Rules. " * 20)
    assert first.cache_creation is not None
    assert first.cache_creation.ephemeral_1h_input_tokens == rules + CLOSING
    assert first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens is not None
    assert second.cache_read_input_tokens >= rules
    assert second.cache_creation is not None
    assert second.cache_creation.ephemeral_1h_input_tokens == 0


def test_openais_client_sees_what_it_asked_for_written_and_read(fresh: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{fresh.url}/v1", api_key="none", max_retries=0, timeout=30) as client:

        def ask(question: str) -> Any:
            return client.chat.completions.create(
                model=MODEL,
                max_tokens=2,
                messages=[
                    {
                        "role": "developer",
                        "content": [
                            {"type": "text", "text": "Rules. " * 20, "prompt_cache_breakpoint": {"mode": "explicit"}}
                        ],
                    },
                    {"role": "user", "content": question},
                ],
                prompt_cache_key="rules",
                prompt_cache_options={"mode": "explicit", "ttl": "30m"},
            ).usage

        first, second = ask("Who?"), ask("Where?")

    rules = 1 + len("system\n") + len("Rules. " * 20)
    assert first.prompt_tokens_details.cached_tokens == 0
    assert first.prompt_tokens_details.cache_write_tokens == first.prompt_tokens
    assert second.prompt_tokens_details.cached_tokens >= rules
    assert kept_blocks(fresh) == blocks(rules, fresh)
