"""The official `anthropic` client against a live server; raw JSON validated strictly by the client's own types."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.server.conftest import MODEL, Keyed, LiveServer
from tests.server.wire import Answer, message_body, send

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
GREEDY = {"temperature": 0}  # no longer among the client's own arguments
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def client(server: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def total(usage: Any) -> int:
    """All input tokens: the sum of the three exclusive fields."""
    found = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    assert isinstance(found, int)
    return found


def test_a_message_is_complete_to_the_field(client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.create(
        model=MODEL, max_tokens=6, messages=MESSAGES, system="Be brief.", extra_body={"seed": 1}
    )

    message = Message.model_validate_json(raw.http_response.content, strict=True)
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES, system="Be brief.")
    assert message.id.startswith("msg_")
    assert message.role == "assistant"
    assert message.stop_reason == "max_tokens"
    assert message.stop_sequence is None
    assert message.content[0].type == "text"
    assert message.usage.output_tokens == 6
    assert total(message.usage) == counted.input_tokens
    assert message.usage.cache_creation is not None
    assert message.usage.cache_creation.ephemeral_5m_input_tokens == message.usage.cache_creation_input_tokens
    assert raw.headers["request-id"].startswith("req_")


def test_a_count_is_the_clients_type(server: LiveServer) -> None:
    answer = send(server.port, "POST", "/v1/messages/count_tokens", {"model": MODEL, "messages": MESSAGES})

    assert MessageTokensCount.model_validate_json(answer.body, strict=True).input_tokens > len("Tell me a story.")


def test_events_come_in_the_documented_order(server: LiveServer) -> None:
    answer = send(server.port, "POST", "/v1/messages", message_body("go", stream=True))

    names = [name for name, _ in answer.events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    for name, data in answer.events:
        assert EVENTS.validate_json(data, strict=True).type == name
    start = json.loads(answer.events[0][1])["message"]
    assert start["content"] == []
    assert start["stop_reason"] is None


def test_a_stream_is_the_message_in_pieces(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "messages": MESSAGES, "extra_body": {"seed": 9}}
    whole = client.messages.create(**fields)

    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()

    assert isinstance(whole.content[0], anthropic.types.TextBlock)
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert total(final.usage) == total(whole.usage)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_a_streams_account_is_the_same_at_both_ends(server: LiveServer, length: int) -> None:
    body = message_body("x" * length, stream=True, cache_salt=f"both ends {length}", max_tokens=20)

    for _ in range(2):
        events = dict(send(server.port, "POST", "/v1/messages", body).events)
        start = json.loads(events["message_start"])["message"]["usage"]
        end = json.loads(events["message_delta"])["usage"]
        for field in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            assert start[field] == end[field]
        assert end["output_tokens"] == 20


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 16, "messages": MESSAGES, "extra_body": GREEDY}
    free = client.messages.create(**fields).content[0].text
    stop = next(c for c in free[4:] if not c.isspace())

    message = client.messages.create(**fields, stop_sequences=[stop])

    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == stop
    assert "".join(block.text for block in message.content) == free[: free.index(stop)]


def test_an_answer_begins_with_the_assistants_last_turn(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 4}
    first = client.messages.create(**fields, messages=MESSAGES)

    more = client.messages.create(**fields, messages=[*MESSAGES, {"role": "assistant", "content": "Once"}])

    assert total(more.usage) == total(first.usage) + len("Once")


def test_a_full_context_is_named(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=4000, messages=[{"role": "user", "content": "x" * 400}])

    assert message.stop_reason in ("model_context_window_exceeded", "end_turn")


def test_a_prompt_can_be_warmed_without_an_answer(client: anthropic.Anthropic) -> None:
    salt = {"cache_salt": "warmed"}
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "extra_body": salt}

    warm = client.messages.create(max_tokens=0, **fields)
    used = client.messages.create(max_tokens=1, **fields)

    assert warm.content == []
    assert warm.stop_reason == "max_tokens"
    assert warm.usage.output_tokens == 0
    assert warm.usage.cache_creation_input_tokens == total(warm.usage)
    assert used.usage.cache_read_input_tokens == total(used.usage) - 1


def test_the_async_client_streams_many_messages_at_once(server: LiveServer) -> None:
    async def one(client: anthropic.AsyncAnthropic, number: int) -> str:
        messages: list[Any] = [{"role": "user", "content": f"{number}"}]
        async with client.messages.stream(model=MODEL, max_tokens=5, messages=messages, extra_body=GREEDY) as stream:
            return "".join([text async for text in stream.text_stream])

    async def all_of_them() -> tuple[list[str], list[str]]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            together = await asyncio.gather(*(one(client, number) for number in range(12)))
            return together, [await one(client, number) for number in range(12)]

    together, alone = asyncio.run(all_of_them())

    assert together == alone


def error_of(answer: Answer) -> dict[str, Any]:
    """An error body in Anthropic's dialect."""
    assert answer.json["type"] == "error"
    error = answer.json["error"]
    assert set(error) == {"type", "message"}
    return dict(error)


def marked(text: str, ttl: str | None = None) -> dict[str, Any]:
    control = {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}
    return {"type": "text", "text": text, "cache_control": control}


def user(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


FIVE = [marked(c) for c in "abcde"]
AUTO = {"type": "ephemeral"}
TOOL = {"name": "f", "input_schema": {"type": "object"}, "cache_control": AUTO}


@pytest.mark.parametrize(
    ("fields", "status", "told"),
    [
        ({"messages": user(*FIVE[:4])}, 200, ""),
        ({"messages": user(*FIVE)}, 400, "Found 5"),
        ({"messages": user(*FIVE[:2]), "system": FIVE[:2]}, 200, ""),
        ({"messages": user(*FIVE[:2]), "system": FIVE[:3]}, 400, "Found 5"),
        ({"messages": user(*FIVE[:2]), "system": FIVE[:2], "tools": [TOOL]}, 400, "Found 5"),
        ({"messages": user(*FIVE[:2]), "system": FIVE[:1], "tools": [TOOL]}, 200, ""),
        ({"messages": user(marked("a", "1h")), "tools": [TOOL]}, 400, "must not come after"),
        ({"messages": user(marked("a", "1h"), marked("b"))}, 200, ""),
        ({"messages": user(marked("a"), marked("b", "1h"))}, 400, "must not come after"),
        ({"messages": user(marked("b", "1h")), "system": [marked("a", "5m")]}, 400, "must not come after"),
        ({"messages": user(marked("a", "2h"))}, 400, "ttl"),
        ({"messages": user({**marked("a"), "cache_control": {"type": "forever"}})}, 400, "type"),
        ({"messages": user(marked(""))}, 400, "empty text"),
        ({"cache_control": AUTO}, 200, ""),
        ({"cache_control": AUTO, "messages": user(*FIVE[:3], {"type": "text", "text": "z"})}, 200, ""),
        ({"cache_control": AUTO, "messages": user(*FIVE[:4], {"type": "text", "text": "z"})}, 400, "Found 5"),
        ({"cache_control": AUTO, "messages": user(*FIVE[:4])}, 200, ""),
        ({"cache_control": AUTO, "messages": user(marked("a", "1h"))}, 400, "another ttl"),
    ],
)
def test_breakpoints_follow_anthropics_rules(
    server: LiveServer, fields: dict[str, Any], status: int, told: str
) -> None:
    answer = send(server.port, "POST", "/v1/messages", message_body() | fields)

    assert answer.status == status, answer.body
    if status == 400:
        assert told in error_of(answer)["message"]


USE = {"type": "tool_use", "id": "x", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "x"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0, "stream": True}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": user({"type": "text", "text": ""})}, "messages[0].content[0].text"),
        ({"messages": user({"type": "image", "source": {}})}, "messages[0].content[0]"),
        ({"messages": user({"type": "tool_result", "tool_use_id": "x"})}, "messages[0].content[0].tool_use_id"),
        ({"messages": user(USE)}, "messages[0].content[0]"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": [USE]}]}, "messages[1].content[0]"),
        ({"messages": [{"role": "assistant", "content": [USE]}, *user(RESULT | {"content": [IMAGE]})]}, "content[0]"),
        ({"messages": [{"role": "assistant", "content": [USE, RESULT]}, *MESSAGES]}, "messages[0].content[1]"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Once "}]}, "messages[1].content"),
        ({"messages": user({"type": "text", "text": "x" * 600})}, "messages"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [" "]}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": {}, "evil": 1}]}, "tools[0].evil"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools"),
        ({"tools": [{"name": "f", "input_schema": {}}] * 2}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]}, "tools[0].type"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [{"name": "f", "input_schema": {}}]}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"effort": "low"}}, "output_config"),
        ({"n": 2}, "n"),
    ],
)
def test_a_message_that_cannot_be_is_400_with_its_field(server: LiveServer, fields: dict[str, Any], named: str) -> None:
    answer = send(server.port, "POST", "/v1/messages", message_body() | fields)

    assert answer.status == 400, answer.body
    assert error_of(answer)["type"] == "invalid_request_error"
    assert named in error_of(answer)["message"]


def test_other_errors_are_of_the_dialect_too(keyed: Keyed, server: LiveServer) -> None:
    port, alice = keyed.live.port, keyed.keys["alice"]

    assert error_of(send(port, "POST", "/v1/messages", message_body()))["type"] == "authentication_error"
    unknown = send(port, "POST", "/v1/messages", message_body(model="claude"), x_api_key=alice)
    assert (unknown.status, error_of(unknown)["type"]) == (404, "not_found_error")
    assert error_of(send(port, "GET", "/v1/messages", key=alice))["type"] == "invalid_request_error"
    assert error_of(send(port, "POST", "/v1/messages/none", {}, key=alice))["type"] == "not_found_error"
    big = send(port, "POST", "/v1/messages", b" " * (9 << 20), x_api_key=alice)
    assert (big.status, error_of(big)["type"]) == (413, "request_too_large")
    with pytest.raises(anthropic.BadRequestError), anthropic.Anthropic(base_url=server.url, api_key="x") as client:
        client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES, extra_body={"temperature": 2})
