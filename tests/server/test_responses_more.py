"""What there is beside a response: its prompt counted beforehand, and what is refused because of how one ends."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import InputTokenCountResponse

from tests.server.conftest import MODEL, Keyed, LiveServer
from tests.server.test_openai_client import strictly
from tests.server.wire import response_body, send

ITEMS: Any = [
    {"role": "user", "content": "One."},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "?"},
]


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.mark.parametrize("more", [{}, {"instructions": "Be brief."}, {"input": ITEMS}, {"truncation": "auto"}])
def test_what_is_counted_is_what_the_answer_will_say(client: openai.OpenAI, more: dict[str, Any]) -> None:
    prompt = {"model": MODEL, "input": "Tell me a story."} | more

    counted = strictly(InputTokenCountResponse, client.responses.input_tokens.with_raw_response.count(**prompt).content)
    answer = client.responses.create(max_output_tokens=2, **prompt)

    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_conversation_is_counted_with_what_went_before(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="One.", max_output_tokens=3, temperature=0)

    counted = client.responses.input_tokens.count(input="And?", previous_response_id=first.id)
    answer = client.responses.create(
        model=MODEL, input="And?", previous_response_id=first.id, max_output_tokens=2, temperature=0
    )

    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens > 20


def test_counting_computes_and_stores_nothing(server: LiveServer, client: openai.OpenAI) -> None:
    async def stats() -> Any:
        return await server.service.engine.run(lambda engine: engine.stats())

    before = server.run(stats())
    client.responses.input_tokens.count(input="Nobody has asked this before.")

    assert server.run(stats()) == before


def test_the_async_client_counts_too(server: LiveServer) -> None:
    async def count() -> int:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return (await client.responses.input_tokens.count(input="hi")).input_tokens

    assert asyncio.run(count()) > 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "x" * 9999}, "input"),
        ({"input": "x", "personality": "friendly"}, "personality"),
        ({"input": "x", "conversation": "c"}, "conversation"),
        ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": "x", "max_output_tokens": 3}, "max_output_tokens"),
    ],
)
def test_what_can_not_be_counted_is_400_with_its_field(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    answer = send(server.port, "POST", "/v1/responses/input_tokens", fields)

    assert answer.status == 400
    assert answer.json["error"]["param"] == param


def test_there_is_nothing_to_cancel_and_nothing_to_compact(server: LiveServer, client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="hi", max_output_tokens=2)

    with pytest.raises(openai.BadRequestError, match="background: not supported by this server"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="compact: not supported by this server"):
        client.responses.compact(model=MODEL, input="hi")
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")
    assert client.responses.retrieve(made.id).id == made.id


def test_another_tenants_response_can_not_be_found_by_cancelling_it(keyed: Keyed) -> None:
    keys, port = keyed.keys, keyed.live.port
    made = send(port, "POST", "/v1/responses", response_body(), key=keys["alice"]).json["id"]

    cancelled = [send(port, "POST", f"/v1/responses/{made}/cancel", {}, key=keys[who]) for who in ("bob", "alice2")]

    assert [answer.status for answer in cancelled] == [404, 400]
