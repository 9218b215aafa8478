"""Whatever a model says of tools, an answer is well-formed in its dialect, streamed and whole, and nobody else notices.

A model is led by what it reads, so its calls are an attacker's words. Here the real engine computes, and what is drawn
is replaced by a script.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anthropic.types import Message
from msgspec.structs import replace
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from tokenizers import pre_tokenizers

from foreword.core.outputs import SampledToken
from foreword.core.types import SequenceId, TokenId
from foreword.text.partial_json import completed_object
from tests.cli.conftest import write_tokenizer
from tests.factories import tiny_model_files
from tests.profile import DEEP
from tests.server.conftest import LiveServer
from tests.server.test_tools import SPECIAL, TEMPLATES
from tests.server.wire import Answer, chat_body, message_body, response_body, send

LONG = 1500 if DEEP else 150
BASE = 2000  # max_tokens of the first script

NAMES = ("f", "weather")
CALL = '{"name": "f", "arguments": {}}'
BODIES = {
    "empty": "",
    "no name": '{"arguments": {}}',
    "another's name": '{"name": "delete_everything", "arguments": {}}',
    "a name that is no text": '{"name": ["f"], "arguments": {}}',
    "a long name": json.dumps({"name": "f" * LONG, "arguments": {}}),
    "arguments that are no object": '{"name": "f", "arguments": [1]}',
    "arguments as text": '{"name": "f", "arguments": "{\\"a\\": 1}"}',
    "cut off": '{"name": "f", "arguments": {"a": "b',
    "deep": '{"name": "f", "arguments": ' + '{"a":' * 70 + "1" + "}" * 71,
    "as deep as may be": '{"name": "f", "arguments": ' + '{"a":' * 62 + "1" + "}" * 63,
    "lists without end": "[" * LONG,
    "NaN": '{"name": "f", "arguments": {"a": NaN}}',
    "infinite": '{"name": "f", "arguments": {"a": -Infinity}}',
    "beyond a double": '{"name": "f", "arguments": {"a": 1e999, "b": -1e999}}',
    "digits": '{"name": "f", "arguments": {"a": ' + "9" * LONG + "}}",
    "half a surrogate pair": '{"name": "f", "arguments": {"a": "\\ud800"}}',
    "a name in half a surrogate pair": '{"name": "\\udfff", "arguments": {}}',
    "a null character": '{"name": "f", "arguments": {"a": "\\u0000"}}',
    "control characters": '{"name": "f", "arguments": {"a": "\x00\x1b[31m\r\n"}}',
    "twice the same": '{"name": "weather", "name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}',
    "both words for arguments": '{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 2}}',
    "its closer in a string": '{"name": "f", "arguments": {"a": "</tool_call><tool_call>"}}',
    "an event in a string": '{"name": "f", "arguments": {"a": "\\n\\ndata: [DONE]\\n\\nevent: message_stop\\n"}}',
    "an event beside it": f"{CALL}\n\ndata: [DONE]\n\nevent: message_stop\ndata: {{}}\n\n",
    "names of the machine": '{"name": "f", "arguments": {"__class__": "x", "__proto__": {"a": 1}, "constructor": 1}}',
    "calls beside one another": CALL * 20,
    "white space": f"{CALL}{' ' * LONG}",
    "nothing but white space": "\n" * LONG,
}
NOT_UTF8 = b'{"name": "f", "arguments": {"a": "\xff\xfe\xed\xa0\x80"}}'
SCRIPTS = [*(body.encode() for body in BODIES.values()), NOT_UTF8]
HELD = {
    "beyond a double": ('{"a": [1e99', "9]}"),
    "more digits than a double has": ('{"a": -' + "9" * 308, "9}"),
    "deeper than clients read": ('{"a": 1, "b": ' + "[" * 62, "[" + "]" * 63 + "}"),
}
"""Arguments that a grammar allows: as far as clients can read them, and the rest."""
WRAPS = {"own": (b"said before\n<tool_call>\n", b"\n</tool_call>"), "mistral": (b" [", b"]"), "llama": (b"", b"")}
SCHEMA: Any = {"type": "object"}


def byte_tokens() -> list[TokenId]:
    """The token of each byte in the tokenizer of `write_tokenizer`: the alphabet of GPT-2, sorted."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    order = {letter: TokenId(n) for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    return [order[letters[byte]] for byte in range(256)]


def written(kind: str, body: bytes) -> list[TokenId]:
    """The tokens of an answer that is a call, as a model of this kind writes one."""
    before, behind = WRAPS[kind]
    of_byte = byte_tokens()
    opener = [TokenId(256 + SPECIAL.index("[TOOL_CALLS]"))] if kind == "mistral" else []
    return [*opener, *(of_byte[byte] for byte in before + body + behind), TokenId(256 + SPECIAL.index("<|im_end|>"))]


def held(kind: str, arguments: str) -> list[TokenId]:
    """The tokens of one call and nothing else, as its grammar spells it."""
    before, body = WRAPS[kind][0].removeprefix(b"said before\n"), '{"name": "f", "arguments": ' + arguments + "}"
    if kind == "llama":
        body = body.replace("arguments", "parameters")
    tokens = written(kind, body.encode())
    return tokens if before == WRAPS[kind][0] else tokens[len("said before\n") :]


def let_say(live: LiveServer, scripts: list[list[TokenId]]) -> None:
    """The answer to a request of `BASE + n` tokens is script n."""
    engine = live.service.loaded.engine
    execute = engine._runner.execute

    def scripted(output: Any, *args: Any) -> Any:
        result, drawn = execute(output, *args), dict[SequenceId, tuple[SampledToken, ...]]()
        for s in output.sequences:
            if s.sequence_id in result.sampled:
                sequence = engine._sequences[s.sequence_id]
                script = scripts[(sequence.params.max_tokens or BASE) - BASE]
                drawn[s.sequence_id] = (SampledToken(script[s.start + len(s.token_ids) - sequence.prompt_len]),)
        return replace(result, sampled=drawn)

    engine._runner.execute = scripted  # type: ignore[method-assign, assignment]


@pytest.fixture(scope="module", params=["own", "mistral", "llama"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tiny_model_files(tmp_path_factory.mktemp(request.param), vocab_size=256 + len(SPECIAL), max_position=4096)
    write_tokenizer(folder, SPECIAL)
    config = {"eos_token": SPECIAL[1], "chat_template": TEMPLATES[request.param]}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
    server = LiveServer(str(folder), debug=False, kv_memory_bytes=32 << 20)
    whole = [held(request.param, "".join(parts)) for parts in HELD.values()]
    let_say(server, [written(request.param, body) for body in SCRIPTS] + whole)
    server.start()
    yield server
    server.check_idle()
    server.stop()


def ask_all(live: LiveServer, path: str, bodies: list[dict[str, Any]]) -> list[tuple[Answer, Answer]]:
    """Whole answers and streamed ones."""
    with ThreadPoolExecutor(16) as pool:
        whole = [pool.submit(send, live.port, "POST", path, body) for body in bodies]
        streamed = [pool.submit(send, live.port, "POST", path, body | {"stream": True}) for body in bodies]
        found = [(a.result(), b.result()) for a, b in zip(whole, streamed, strict=True)]
    assert all(a.status == b.status == 200 for a, b in found)
    return found


def check_call(name: str | None, arguments: str) -> None:
    """A call is of a tool that was given, and its arguments are an object that any client can read."""
    assert name in NAMES
    assert isinstance(json.loads(arguments), dict)
    arguments.encode()


def test_chat_tells_every_answer_alike_whole_and_streamed(live: LiveServer) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    num_calls = 0
    for whole, streamed in ask_all(
        live, "/v1/chat/completions", [chat_body(tools=tools, max_tokens=BASE + n) for n in range(len(SCRIPTS))]
    ):
        choice = ChatCompletion.model_validate_json(whole.body, strict=True).choices[0]
        calls = [call.function for call in choice.message.tool_calls or () if call.type == "function"]
        for call in calls:
            check_call(call.name, call.arguments)
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        *events, (_, last) = streamed.events
        assert last == "[DONE]"
        chunks = [ChatCompletionChunk.model_validate_json(data, strict=True) for _, data in events]
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert "".join(delta.content or "" for delta in deltas) == (choice.message.content or "")
        parts = [part for delta in deltas for part in delta.tool_calls or ()]
        told = [[part for part in parts if part.index == index] for index in range(len(calls))]
        assert sum(map(len, told)) == len(parts)
        for made, call in zip(told, calls, strict=True):
            functions = [part.function for part in made if part.function is not None]
            assert [f.name for f in functions if f.name] == [call.name]
            assert "".join(f.arguments or "" for f in functions) == call.arguments
        num_calls += len(calls)
    assert num_calls > 5  # some of them are calls


def test_messages_tell_every_answer_alike_whole_and_streamed(live: LiveServer) -> None:
    tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    for whole, streamed in ask_all(
        live, "/v1/messages", [message_body(tools=tools, max_tokens=BASE + n) for n in range(len(SCRIPTS))]
    ):
        message = Message.model_validate_json(whole.body, strict=True)
        called = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == ("tool_use" if called else "end_turn")
        assert all(block.name in NAMES and isinstance(block.input, dict) for block in called)
        names = [name for name, _ in streamed.events]
        assert names[0] == "message_start"
        assert names.count("message_stop") == 1
        assert names[-1] == "message_stop"
        blocks: list[dict[str, Any]] = []
        for _, data in streamed.events:
            event = json.loads(data)
            if event["type"] == "content_block_start":
                blocks.append(event["content_block"] | {"told": ""})
            elif event["type"] == "content_block_delta":
                blocks[-1]["told"] += event["delta"].get("text", event["delta"].get("partial_json", ""))
        assert [block["type"] for block in blocks] == [block.type for block in message.content]
        for block, expected in zip(blocks, message.content, strict=True):
            if expected.type == "tool_use":
                assert json.loads(block["told"] or "{}") == expected.input
            elif expected.type == "text":
                assert block["told"] == expected.text


def test_responses_tell_every_answer_alike_whole_and_streamed(live: LiveServer) -> None:
    tools = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in NAMES]
    for whole, streamed in ask_all(
        live, "/v1/responses", [response_body(tools=tools, max_output_tokens=BASE + n) for n in range(len(SCRIPTS))]
    ):
        response = Response.model_validate_json(whole.body, strict=True)
        assert response.status == "completed"
        calls = [item for item in response.output if item.type == "function_call"]
        for call in calls:
            check_call(call.name, call.arguments)
        name, data = streamed.events[-1]
        assert name == "response.completed"
        again = json.loads(data)["response"]
        told = [(item["name"], item["arguments"]) for item in again["output"] if item["type"] == "function_call"]
        assert told == [(call.name, call.arguments) for call in calls]
        texts = [part["text"] for item in again["output"] if item["type"] == "message" for part in item["content"]]
        assert "".join(texts) == response.output_text


def held_bodies(body: dict[str, Any], limit: str) -> list[dict[str, Any]]:
    """Requests whose answers are held to a call, and are those of `HELD`."""
    return [body | {limit: BASE + len(SCRIPTS) + n} for n in range(len(HELD))]


def check_cut(arguments: str, parts: tuple[str, str]) -> None:
    """What there is of a call ends before what no client could read, and can be closed."""
    told, _ = parts
    assert told.startswith(arguments)
    assert len(arguments) >= len(told) - 1  # Mistral's list is one level more
    msgspec.json.decode(completed_object(arguments))


def test_chat_cuts_a_held_call_off_before_what_strict_clients_refuse(live: LiveServer) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
    bodies = held_bodies(chat_body(tools=tools, tool_choice="required"), "max_tokens")
    for parts, (whole, streamed) in zip(HELD.values(), ask_all(live, "/v1/chat/completions", bodies), strict=True):
        choice = ChatCompletion.model_validate_json(whole.body, strict=True).choices[0]
        calls = [call.function.arguments for call in choice.message.tool_calls or () if call.type == "function"]
        assert len(calls) == 1
        check_cut(calls[0], parts)
        assert (choice.finish_reason, choice.message.content) == ("length", None)
        chunks = [ChatCompletionChunk.model_validate_json(data, strict=True) for _, data in streamed.events[:-1]]
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        told = [part.function for each in choices for part in each.delta.tool_calls or () if part.function is not None]
        assert "".join(part.arguments or "" for part in told) == calls[0]
        assert choices[-1].finish_reason == "length"
        assert not any(each.delta.content for each in choices)


def test_messages_cut_a_held_call_off_before_what_strict_clients_refuse(live: LiveServer) -> None:
    tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    bodies = held_bodies(message_body(tools=tools, tool_choice={"type": "any"}), "max_tokens")
    for parts, (whole, streamed) in zip(HELD.values(), ask_all(live, "/v1/messages", bodies), strict=True):
        message = Message.model_validate_json(whole.body, strict=True)
        (block,) = message.content
        assert block.type == "tool_use"
        assert message.stop_reason == "max_tokens"
        events = [json.loads(data) for _, data in streamed.events]
        told = "".join(e["delta"].get("partial_json", "") for e in events if e["type"] == "content_block_delta")
        check_cut(told, parts)
        assert json.loads(completed_object(told)) == block.input
        assert [e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"] == ["max_tokens"]


def test_responses_cut_a_held_call_off_before_what_strict_clients_refuse(live: LiveServer) -> None:
    tools = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in NAMES]
    bodies = held_bodies(response_body(tools=tools, tool_choice="required"), "max_output_tokens")
    for parts, (whole, streamed) in zip(HELD.values(), ask_all(live, "/v1/responses", bodies), strict=True):
        response = Response.model_validate_json(whole.body, strict=True)
        (call,) = response.output
        assert call.type == "function_call"
        check_cut(call.arguments, parts)
        assert (response.status, call.status) == ("incomplete", "incomplete")
        name, data = streamed.events[-1]
        assert name == "response.incomplete"
        assert [item["arguments"] for item in json.loads(data)["response"]["output"]] == [call.arguments]
