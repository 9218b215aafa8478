"""Tools through both official clients: whole loops, streamed and not, sync and async; and what is read from the cache.

A schema with one possible value makes a random model call a tool with known arguments.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.cli.conftest import write_tokenizer
from tests.factories import tiny_model_files
from tests.server.conftest import MODEL, LiveServer
from tests.server.wire import send

SPECIAL = ("<|im_start|>", "<|im_end|>", "[TOOL_CALLS]")
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
OWN = (  # in the manner of Qwen's
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}{% for c in m.tool_calls %}{% if not loop.first or m.content %}{{ '\\n' }}{% endif %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "{{ '\\n' }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}" + ASKED
)
MISTRAL = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.content }}"
    "{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{{ ', ' if not loop.first else '' }}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "{% endfor %}]{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
LLAMA = "{% if tools %}<|python_tag|>{{ tools | tojson }}{% endif %}" + CHAT + ASKED
TEMPLATES = {"own": OWN, "told": CHAT + ASKED, "mistral": MISTRAL, "llama": LLAMA}

ARGUMENTS = {"city": "Ulm", "days": 3}
ARGUMENTS_TEXT = json.dumps(ARGUMENTS)
CUT = 55  # tokens, in each format before the end of the arguments
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm"]}, "days": {"const": 3}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
TOOL: Any = {"name": "weather", "description": "Tell it.", "input_schema": SCHEMA}
USER: Any = {"role": "user", "content": "Is it warm?"}


@pytest.fixture(scope="module", params=TEMPLATES)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tiny_model_files(tmp_path_factory.mktemp(request.param), vocab_size=256 + len(SPECIAL), max_position=2048)
    write_tokenizer(folder, SPECIAL)
    config = {"eos_token": SPECIAL[1], "chat_template": TEMPLATES[request.param]}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
    server = LiveServer(str(folder))
    server.start()
    yield server
    server.check_idle()
    server.stop()


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def claude(live: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def fields(**more: Any) -> Any:
    base = {"model": MODEL, "messages": [USER], "tools": [FUNCTION, CLOCK], "max_tokens": 200, "temperature": 0}
    named = {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
    return base | named | more


def claude_fields(**more: Any) -> Any:
    chosen = {"tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}}
    return {"model": MODEL, "messages": [USER], "tools": [TOOL], "max_tokens": 200} | chosen | more


def only_call(message: Any) -> Any:
    (call,) = message.tool_calls
    return call


def test_a_named_function_is_called_and_its_result_read_on(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**fields())
    first = ChatCompletion.model_validate_json(raw.content, strict=True).choices[0]

    assert first.finish_reason == "tool_calls"
    assert first.message.content is None
    call = only_call(first.message)
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == ARGUMENTS

    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "yes"}
    messages = [USER, first.message.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(**fields(messages=messages, tool_choice="none", max_tokens=5))
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].finish_reason == "length"


def test_a_streamed_call_is_what_the_clients_gather(client: openai.OpenAI, live: LiveServer) -> None:
    with client.chat.completions.stream(**fields()) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()

    message = final.choices[0].message
    assert final.choices[0].finish_reason == "tool_calls"
    call = only_call(message)
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", ARGUMENTS)
    events = send(live.port, "POST", "/v1/chat/completions", fields(stream=True)).events
    chunks = [ChatCompletionChunk.model_validate_json(data, strict=True) for _, data in events[:-1]]
    parts = [part for c in chunks for part in c.choices[0].delta.tool_calls or ()]
    assert [bool(part.id) for part in parts] == [True] + [False] * (len(parts) - 1)
    assert {part.index for part in parts} == {0}
    assert not any(c.choices[0].delta.content for c in chunks)
    pieces = [part.function.arguments or "" for part in parts if part.function]
    assert len(pieces) > len(ARGUMENTS_TEXT) / 2  # as they are written, which here is byte by byte
    assert "".join(pieces) == ARGUMENTS_TEXT


def test_a_call_cut_off_stays_a_call_streamed_or_not(
    client: openai.OpenAI, claude: anthropic.Anthropic, live: LiveServer
) -> None:
    whole = client.chat.completions.create(**fields(max_tokens=CUT)).choices[0]
    events = send(live.port, "POST", "/v1/chat/completions", fields(stream=True, max_tokens=CUT)).events
    choices = [ChatCompletionChunk.model_validate_json(data, strict=True).choices[0] for _, data in events[:-1]]
    message = claude.messages.create(**claude_fields(max_tokens=CUT))
    with claude.messages.stream(**claude_fields(max_tokens=CUT)) as stream:
        final = stream.get_final_message()

    call = only_call(whole.message)
    parts = [part for choice in choices for part in choice.delta.tool_calls or ()]
    assert whole.finish_reason == choices[-1].finish_reason == "length"
    assert call.function.name == "weather"
    assert ARGUMENTS_TEXT.startswith(call.function.arguments)
    assert len(call.function.arguments) < len(ARGUMENTS_TEXT)
    assert "".join(part.function.arguments or "" for part in parts if part.function) == call.function.arguments
    assert message.stop_reason == final.stop_reason == "max_tokens"
    (block,), (same,) = message.content, final.content
    assert block.type == same.type == "tool_use"
    assert block.input == same.input
    assert block.input in ({}, {"city": "Ulm"})


def test_required_is_a_call_of_some_tool(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **fields(tools=[FUNCTION], tool_choice="required", parallel_tool_calls=False)
    )

    assert answer.choices[0].finish_reason == "tool_calls"
    assert len(answer.choices[0].message.tool_calls or ()) == 1


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}

    answer = client.chat.completions.create(**fields(tool_choice=choice, parallel_tool_calls=False, n=2))

    for chosen in answer.choices:
        assert [call.function.name for call in chosen.message.tool_calls or ()] == ["weather"]


def test_an_answer_may_be_text_though_a_tool_is_strict(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**fields(tool_choice="auto", max_tokens=6))
    chunks = list(client.chat.completions.create(**fields(tool_choice="auto", max_tokens=6), stream=True))

    assert answer.choices[0].finish_reason in ("length", "stop")
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == answer.choices[0].message.content


def test_parameters_that_are_no_object_cannot_be_enforced(client: openai.OpenAI) -> None:
    wrong = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(**fields(tools=[wrong], tool_choice="required"))


def test_claude_calls_a_tool_and_reads_its_result_on(claude: anthropic.Anthropic) -> None:
    raw = claude.messages.with_raw_response.create(**claude_fields())
    first = Message.model_validate_json(raw.http_response.content, strict=True)

    assert first.stop_reason == "tool_use"
    (block,) = first.content
    assert block.type == "tool_use"
    assert (block.name, block.input) == ("weather", ARGUMENTS)
    assert block.id.startswith("toolu_")

    used: Any = {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
    result = {
        "type": "tool_result",
        "tool_use_id": block.id,
        "content": [{"type": "text", "text": "no"}],
        "is_error": True,
    }
    more = {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}
    messages = [USER, {"role": "assistant", "content": [{"type": "text", "text": "Well."}, used]}, more]
    asked = claude_fields(messages=messages, tool_choice={"type": "none"}, max_tokens=5)
    second = claude.messages.create(**asked)
    assert [part.type for part in second.content] in ([], ["text"])
    counted = claude.messages.count_tokens(model=MODEL, messages=messages, tools=[TOOL], tool_choice={"type": "none"})
    usage = second.usage
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert counted.input_tokens == total


def test_a_streamed_tool_use_is_what_the_client_gathers(claude: anthropic.Anthropic, live: LiveServer) -> None:
    with claude.messages.stream(**claude_fields()) as stream:
        final = stream.get_final_message()

    assert final.stop_reason == "tool_use"
    (block,) = final.content
    assert block.type == "tool_use"
    assert block.input == ARGUMENTS
    events = send(live.port, "POST", "/v1/messages", claude_fields(stream=True)).events
    names = [name for name, _ in events]
    deltas = [json.loads(data)["delta"] for name, data in events if name == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"input_json_delta"}
    assert len(deltas) > len(ARGUMENTS_TEXT) / 2
    assert "".join(delta["partial_json"] for delta in deltas) == ARGUMENTS_TEXT
    assert [name for name in names if name != "content_block_delta"] == [
        *("message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"),
    ]


def test_async_clients_do_the_same(live: LiveServer) -> None:
    async def both() -> tuple[Any, Any]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
            chat = await client.chat.completions.create(**fields())
        async with (
            anthropic.AsyncAnthropic(base_url=live.url, api_key="none", max_retries=0) as claude,
            claude.messages.stream(**claude_fields()) as stream,
        ):
            return chat, await stream.get_final_message()

    chat, message = asyncio.run(both())

    assert json.loads(chat.choices[0].message.tool_calls[0].function.arguments) == ARGUMENTS
    assert message.content[0].input == ARGUMENTS


def test_the_next_turn_is_read_through_the_end_of_the_call(
    client: openai.OpenAI, request: pytest.FixtureRequest
) -> None:
    if "llama" in request.node.name:
        pytest.skip("this template writes no calls")
    salt = {"extra_body": {"cache_salt": "through the call"}}
    first = client.chat.completions.create(**fields(**salt))
    call = only_call(first.choices[0].message)
    usage = first.usage
    assert usage is not None

    result = {"role": "tool", "tool_call_id": call.id, "content": "yes"}
    messages = [USER, {"role": "assistant", "tool_calls": [call.model_dump()]}, result]
    second = client.chat.completions.create(**fields(messages=messages, tool_choice="none", max_tokens=1, **salt))

    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # What was drawn last was never computed.
    assert second.usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens + usage.completion_tokens - 1


def test_tools_are_counted_where_they_are_tokenised(live: LiveServer, client: openai.OpenAI) -> None:
    body = {"model": MODEL, "messages": [USER], "tools": [FUNCTION, CLOCK]}

    found = send(live.port, "POST", "/tokenize", body).json
    text = send(live.port, "POST", "/apply-template", body).json["prompt"]
    query = send(live.port, "POST", "/cache/query", body).json

    usage = client.chat.completions.create(**fields(tool_choice="none", max_tokens=1)).usage
    assert usage is not None
    assert found["count"] == query["prompt_tokens"] == usage.prompt_tokens
    assert '"weather"' in text
    assert send(live.port, "POST", "/tokenize", {"model": MODEL, "prompt": "x", "tools": [CLOCK]}).status == 400
