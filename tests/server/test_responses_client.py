"""`/v1/responses` through the official client, sync and async; raw JSON validated strictly by its own types."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from foreword.server.cache_policy.emulation import Emulation
from tests.server.conftest import MODEL, LiveServer, StartServer
from tests.server.test_openai_client import strictly
from tests.server.wire import response_body, send

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXT_EVENTS = (
    *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
    *("response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"),
)


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def fields(**more: Any) -> Any:
    return {"model": MODEL, "input": "Tell me a story.", "max_output_tokens": 6, "temperature": 0} | more


def events_of(server: LiveServer, body: dict[str, Any]) -> list[Any]:
    """A stream's events as the client's own types; names and numbers are checked."""
    answer = send(server.port, "POST", "/v1/responses", body | {"stream": True})
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [EVENT.validate_json(data, strict=True) for _, data in answer.events]
    assert [event.type for event in events] == [name for name, _ in answer.events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def test_an_answer_is_complete_to_the_field(client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        **fields(instructions="Be brief.", metadata={"for": "a test"}, prompt_cache_key="k", top_p=0.5)
    )

    answer = strictly(Response, raw.content)
    assert (answer.object, answer.model, answer.status) == ("response", MODEL, "incomplete")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.error is None
    assert (answer.instructions, answer.metadata) == ("Be brief.", {"for": "a test"})
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0, 0.5, 6)
    assert (answer.tool_choice, answer.tools, answer.parallel_tool_calls) == ("auto", [], True)
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")
    assert message.content[0].text == answer.output_text
    usage = answer.usage
    assert usage.output_tokens == 6
    assert usage.total_tokens == usage.input_tokens + 6
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert raw.headers["foreword-prompt-tokens"] == str(usage.input_tokens)


def test_the_same_conversation_is_the_same_prompt_as_in_chat(client: openai.OpenAI) -> None:
    items: Any = [
        {"role": "user", "content": "one"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "two", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]
    messages: Any = [{"role": role, "content": text} for role, text in WORDS]

    answer = client.responses.create(**fields(input=items, instructions="be"))
    chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=6, temperature=0)

    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage is not None
    assert chat.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens


WORDS = (("system", "be"), ("user", "one"), ("assistant", "two"), ("user", "three"))


def test_events_come_in_the_documented_order(server: LiveServer) -> None:
    events = events_of(server, response_body(max_output_tokens=6))

    kinds = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert tuple(kind for kind in kinds if kind != "response.output_text.delta") == TEXT_EVENTS
    assert kinds.index("response.output_text.delta") == 4
    assert kinds[-4:] == list(TEXT_EVENTS[-4:])
    created, last = events[0].response, events[-1].response
    assert (created.status, created.output, created.usage) == ("in_progress", [], None)
    assert created.id == last.id
    item = events[2].item
    assert (item.status, item.content) == ("in_progress", [])
    assert {(event.item_id, event.output_index, event.content_index) for event in deltas} == {(item.id, 0, 0)}
    text = "".join(event.delta for event in deltas)
    assert text == events[-4].text == events[-3].part.text == last.output_text
    assert events[-2].item == last.output[0]
    assert last.usage.output_tokens == 6


def test_a_stream_is_the_answer_in_pieces(client: openai.OpenAI, server: LiveServer) -> None:
    whole = client.responses.create(**fields())

    with client.responses.stream(**fields()) as stream:
        kinds = [event.type for event in stream]

    assert kinds[0] == "response.created"
    last = events_of(server, fields())[-1].response
    assert last.output_text == whole.output_text
    assert last.usage.input_tokens_details.cached_tokens == last.usage.input_tokens - 1


def test_an_answer_that_ends_by_itself_is_completed(client: openai.OpenAI, server: LiveServer) -> None:
    ends = {"enum": ["yes"]}
    form: Any = {"format": {"type": "json_schema", "name": "yes", "schema": ends, "strict": True}}

    answer = client.responses.create(**fields(text=form, max_output_tokens=30))

    assert answer.status == "completed"
    assert answer.incomplete_details is None
    assert json.loads(answer.output_text) == "yes"
    assert answer.output[0].status == "completed"
    with client.responses.stream(**fields(text=form, max_output_tokens=30)) as stream:
        final = stream.get_final_response()
    assert final.output_text == answer.output_text
    assert events_of(server, fields(text=form, max_output_tokens=30))[-1].type == "response.completed"


class Weather(BaseModel):
    """What is to be found in the text."""

    city: Literal["Ulm"]
    days: Literal[3]


def test_parse_gives_the_clients_own_type(client: openai.OpenAI) -> None:
    answer = client.responses.parse(**fields(max_output_tokens=200), text_format=Weather)

    assert answer.status == "completed"
    assert answer.output_parsed == Weather(city="Ulm", days=3)


def test_logprobs_come_with_the_text_they_are_of(client: openai.OpenAI, server: LiveServer) -> None:
    asked = fields(include=["message.output_text.logprobs"], top_logprobs=2)

    answer = strictly(Response, client.responses.with_raw_response.create(**asked).content)
    events = events_of(server, asked)

    entries = answer.output[0].content[0].logprobs
    assert len(entries) == 6
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    text = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace")
    assert text == answer.output_text
    told = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    done = next(event for event in events if event.type == "response.output_text.done")
    assert [entry.logprob for entry in told] == [entry.logprob for entry in entries]
    assert [entry.logprob for entry in done.logprobs] == [entry.logprob for entry in entries]


def test_a_response_is_retrieved_listed_and_deleted(client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(**fields(input=[{"role": "user", "content": "hello"}]))
    made = strictly(Response, raw.content)

    again = client.responses.with_raw_response.retrieve(made.id)
    assert again.content == raw.content
    (item,) = list(client.responses.input_items.list(made.id))
    assert item.type == "message"
    assert item.content[0].text == "hello"  # type: ignore[union-attr]
    client.responses.delete(made.id)
    for gone in (
        lambda: client.responses.retrieve(made.id),
        lambda: client.responses.delete(made.id),
        lambda: client.responses.input_items.list(made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            gone()
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**fields(previous_response_id=made.id))
    assert refused.value.code == "previous_response_not_found"


def text_of(item: Any) -> str:
    text = item.content[0].text
    assert isinstance(text, str)
    return text


def test_the_items_of_a_conversation_are_paged(client: openai.OpenAI) -> None:
    first = client.responses.create(**fields(input="0"))
    second = client.responses.create(**fields(input="1", previous_response_id=first.id))
    third = client.responses.create(**fields(input="2", previous_response_id=second.id))

    newest = list(client.responses.input_items.list(third.id, limit=2))
    oldest = list(client.responses.input_items.list(third.id, order="asc"))

    texts = [text_of(item) for item in oldest]
    assert texts == ["0", first.output_text, "1", second.output_text, "2"]
    assert newest == oldest[::-1]
    page = client.responses.input_items.list(third.id, limit=2)
    assert (len(page.data), page.has_more) == (2, True)
    assert [item.id for item in client.responses.input_items.list(third.id, after=oldest[0].id, order="asc")] == [
        item.id for item in oldest[1:]
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_the_next_turn_reads_through_the_end_of_the_last_answer(server: LiveServer, stream: bool) -> None:
    salt = f"turns {stream}"
    body = response_body("hello", max_output_tokens=20, ignore_eos=True, cache_salt=salt, stream=stream)
    first = last_response(send(server.port, "POST", "/v1/responses", body))

    body |= {"input": "more", "previous_response_id": first["id"]}
    second = last_response(send(server.port, "POST", "/v1/responses", body))
    body |= {"input": "and more", "previous_response_id": second["id"]}
    third = last_response(send(server.port, "POST", "/v1/responses", body))

    for before, after in ((first, second), (second, third)):
        # The last token drawn was never computed; all before it is read.
        assert after["usage"]["input_tokens_details"]["cached_tokens"] == before["usage"]["input_tokens"] + 19


def last_response(answer: Any) -> Any:
    assert answer.status == 200, answer.body
    if answer.headers["content-type"].startswith("text/event-stream"):
        return json.loads(answer.events[-1][1])["response"]
    return answer.json


def test_instructions_are_not_carried_over(client: openai.OpenAI) -> None:
    first = client.responses.create(**fields(input="a", instructions="Be a pirate."))
    plain = client.responses.create(**fields(input="a"))

    one, other = (client.responses.create(**fields(input="b", previous_response_id=each.id)) for each in (first, plain))

    assert one.usage is not None
    assert other.usage is not None
    assert one.instructions is None
    spoken = len(first.output_text.encode()) - len(plain.output_text.encode())
    assert one.usage.input_tokens - other.usage.input_tokens == spoken or "\ufffd" in first.output_text


def test_what_is_not_stored_cannot_be_continued(client: openai.OpenAI) -> None:
    made = client.responses.create(**fields(store=False))

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**fields(previous_response_id=made.id))


def test_a_branch_leaves_the_other_as_it_was(client: openai.OpenAI) -> None:
    root = client.responses.create(**fields(input="root"))

    one, other = (client.responses.create(**fields(input=text, previous_response_id=root.id)) for text in ("x", "y"))

    for made, text in ((one, "x"), (other, "y")):
        newest = next(iter(client.responses.input_items.list(made.id)))
        assert text_of(newest) == text


def test_a_prewarmed_prompt_is_read_and_may_be_continued(client: openai.OpenAI, server: LiveServer) -> None:
    warm = client.responses.create(
        model=MODEL, input="a long document " * 5, prompt_cache_options={"prewarm": True, "ttl": "30m"}
    )
    assert (warm.status, warm.output, warm.output_text) == ("completed", [], "")
    assert warm.usage is not None
    assert warm.usage.output_tokens == 0

    asked = client.responses.create(**fields(input="a long document " * 5))
    assert asked.usage is not None
    assert asked.usage.input_tokens_details.cached_tokens == warm.usage.input_tokens - 1
    events = events_of(server, response_body("x", prompt_cache_options={"prewarm": True}))
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.completed"]
    client.responses.create(**fields(previous_response_id=warm.id))


def test_truncation_drops_the_oldest_turns(client: openai.OpenAI) -> None:
    items: Any = [{"role": "developer", "content": "Stay."}]
    for number in range(12):
        items += [{"role": "user", "content": f"{number:02}" * 20}, {"role": "assistant", "content": "ok"}]
    items.append({"role": "user", "content": "last"})

    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**fields(input=items))
    answer = client.responses.create(**fields(input=items, truncation="auto"))

    assert refused.value.code == "context_length_exceeded"
    assert answer.usage is not None
    turn = len("<user\n" + "00" * 20 + "<\n<assistant\nok<\n")  # a token for each letter and each special token
    assert 512 - 6 - turn < answer.usage.input_tokens <= 512 - 6
    assert answer.truncation == "auto"
    short = client.responses.create(**fields(truncation="auto"))
    assert short.usage is not None
    assert short.usage.input_tokens == client.responses.create(**fields()).usage.input_tokens


def test_the_async_client_does_the_same(server: LiveServer) -> None:
    async def play() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            first = await client.responses.create(**fields(input="hello"))
            async with client.responses.stream(**fields(previous_response_id=first.id)) as stream:
                kinds = [event.type async for event in stream]
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.incomplete"
            raw = await client.responses.create(**fields(stream=True))
            ids = {event.response.id async for event in raw if hasattr(event, "response")}
            assert len(ids) == 1
            assert (await client.responses.retrieve(first.id)).output_text == first.output_text
            items = [item async for item in client.responses.input_items.list(first.id)]
            assert len(items) == 1
            parsed = await client.responses.parse(**fields(max_output_tokens=200), text_format=Weather)
            assert parsed.output_parsed == Weather(city="Ulm", days=3)
            await client.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(first.id)

    asyncio.run(play())


def diagnosed(client: openai.OpenAI, compared: str | None = None, **more: Any) -> tuple[str, Any]:
    """A response's id, and what it tells of a comparison."""
    options = {"prompt_cache_options": {"comparison_response_id": compared}} if compared else {}
    raw = client.responses.with_raw_response.create(**fields(**options, **more)).content
    told = json.loads(raw)["prompt_cache_diagnostics"]
    assert (strictly(Response, raw).prompt_cache_diagnostics is None) == (told is None)
    return json.loads(raw)["id"], told


def test_a_miss_is_explained_to_the_token(client: openai.OpenAI) -> None:
    first, told = diagnosed(client, input="x" * 40)
    assert told is None

    assert diagnosed(client, first, input="more", previous_response_id=first)[1] == {"type": "cache_hit"}
    assert diagnosed(client, "resp_none")[1] == {"type": "comparison_response_not_found"}
    assert diagnosed(client, first, input="x" * 30 + "!" + "x" * 9)[1] == {
        "type": "cache_miss",
        "reason": "input_changed",
        "cache_missed_tokens": 10 + len("<\n<assistant\n"),
        "comparison_reusable_tokens": len("<user\n") + 30,
    }
    tools: Any = [{"type": "function", "name": "f", "parameters": {}}]
    assert diagnosed(client, first, input="x" * 40, tools=tools)[1]["reason"] == "tools_changed"
    assert diagnosed(client, first, input="x" * 40, prompt_cache_key="k")[1] == {"type": "cache_hit"}


def test_a_streams_diagnostics_come_at_its_end(server: LiveServer) -> None:
    events = events_of(server, response_body(prompt_cache_options={"comparison_response_id": "resp_none"}))

    assert events[0].response.prompt_cache_diagnostics is None
    assert events[-1].response.prompt_cache_diagnostics.type == "comparison_response_not_found"


def test_under_emulation_the_providers_own_reasons_count(start_server: StartServer) -> None:
    live = start_server(emulation=Emulation("openai", minimum=8))
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        first, _ = diagnosed(client, prompt_cache_key="k")
        other, told = diagnosed(client, first, prompt_cache_key="l")
        form: Any = {"format": {"type": "json_object"}}

        assert told["reason"] == "prompt_cache_key_changed"
        assert diagnosed(client, other, prompt_cache_key="l", text=form)[1]["reason"] == "text_format_changed"
        usage = client.responses.create(**fields(prompt_cache_key="l")).usage
    assert usage is not None
    details = usage.input_tokens_details
    assert details.cached_tokens == usage.input_tokens - len("<assistant\n")  # that is never written
    assert details.cache_write_tokens == 0
