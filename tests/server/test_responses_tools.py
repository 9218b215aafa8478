"""Tools through `/v1/responses`: calls as items, streamed and not, their results, and what is read from the cache."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.server.conftest import MODEL, LiveServer
from tests.server.test_openai_client import strictly
from tests.server.test_responses_client import events_of
from tests.server.test_tools import ARGUMENTS, ARGUMENTS_TEXT, CUT, SCHEMA
from tests.server.test_tools import live as live

WEATHER: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
CLOCK: Any = {"type": "function", "name": "clock", "parameters": None, "strict": None}
NAMED: Any = {"type": "function", "name": "weather"}


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def fields(**more: Any) -> Any:
    base = {"model": MODEL, "input": "Is it warm?", "tools": [WEATHER, CLOCK], "max_output_tokens": 200}
    return base | {"temperature": 0, "tool_choice": NAMED} | more


def only_call(response: Any) -> Any:
    (call,) = response.output
    assert call.type == "function_call"
    return call


def test_a_named_function_is_called_and_its_result_read_on(client: openai.OpenAI) -> None:
    first = strictly(Response, client.responses.with_raw_response.create(**fields()).content)

    call = only_call(first)
    assert first.status == call.status == "completed"
    assert (call.name, json.loads(call.arguments)) == ("weather", ARGUMENTS)
    assert [tool.name for tool in first.tools] == ["weather", "clock"]
    assert first.tool_choice.name == "weather"

    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "yes"}
    more = fields(tool_choice="none", max_output_tokens=5)
    told = client.responses.create(**more | {"input": [result], "previous_response_id": first.id})
    resent: Any = [{"role": "user", "content": "Is it warm?"}, *first.output, result]
    again = client.responses.create(**more | {"input": resent})
    assert told.output_text == again.output_text
    assert told.usage is not None
    assert again.usage is not None
    assert told.usage.input_tokens == again.usage.input_tokens
    kinds = [item.type for item in client.responses.input_items.list(told.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output"]


def test_a_streamed_call_is_what_the_client_gathers(client: openai.OpenAI, live: LiveServer) -> None:
    with client.responses.stream(**fields()) as stream:
        for _ in stream:
            pass
        call = only_call(stream.get_final_response())

    assert (call.name, json.loads(call.arguments)) == ("weather", ARGUMENTS)
    events = events_of(live, fields())
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert [event.type for event in events] == [
        *("response.created", "response.in_progress", "response.output_item.added"),
        *([deltas[0].type] * len(deltas)),
        *("response.function_call_arguments.done", "response.output_item.done", "response.completed"),
    ]
    added, done = events[2].item, events[-2].item
    assert (added.id, added.call_id, added.arguments) == (done.id, done.call_id, "")
    assert len(deltas) > len(done.arguments) / 2  # as they are written, which here is byte by byte
    assert "".join(event.delta for event in deltas) == events[-3].arguments == done.arguments
    assert events[-1].response.output == [done]


def test_a_call_cut_off_stays_a_call_and_says_so(client: openai.OpenAI, live: LiveServer) -> None:
    cut = client.responses.create(**fields(max_output_tokens=CUT))
    last = events_of(live, fields(max_output_tokens=CUT))[-1].response

    call = only_call(cut)
    assert cut.status == call.status == last.status == only_call(last).status == "incomplete"
    assert call.arguments == only_call(last).arguments
    assert ARGUMENTS_TEXT.startswith(call.arguments)


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}

    answer = client.responses.create(**fields(tool_choice=choice, parallel_tool_calls=False))

    assert only_call(answer).name == "weather"
    assert answer.parallel_tool_calls is False


def test_the_async_client_calls_too(live: LiveServer) -> None:
    async def play() -> Any:
        async with (
            openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
            client.responses.stream(**fields()) as stream,
        ):
            return await stream.get_final_response()

    assert json.loads(only_call(asyncio.run(play())).arguments) == ARGUMENTS


def test_an_answer_may_be_text_though_tools_are_there(client: openai.OpenAI, live: LiveServer) -> None:
    answer = client.responses.create(**fields(tool_choice="auto", max_output_tokens=6))
    last = events_of(live, fields(tool_choice="auto", max_output_tokens=6))[-1].response

    assert [item.type for item in answer.output] == ["message"]
    assert last.output_text == answer.output_text


def test_the_next_turn_is_read_through_the_end_of_the_call(
    client: openai.OpenAI, request: pytest.FixtureRequest
) -> None:
    if "llama" in request.node.name:
        pytest.skip("this template writes no calls")
    salt = {"extra_body": {"cache_salt": "through the call"}}
    first = client.responses.create(**fields(**salt))
    assert first.usage is not None

    result: Any = {"type": "function_call_output", "call_id": only_call(first).call_id, "output": "yes"}
    asked = fields(tool_choice="none", max_output_tokens=1, previous_response_id=first.id, **salt)
    second = client.responses.create(**asked | {"input": [result]})

    assert second.usage is not None
    # What was drawn last was never computed.
    assert second.usage.input_tokens_details.cached_tokens == first.usage.total_tokens - 1
