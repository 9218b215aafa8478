"""The real model held to a schema, over HTTP: in every dialect, whole and streamed, with and without speculation.

A form's answer is never drafted, but it is computed beside answers that are: here one that repeats what it was told.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

from tests.server.conftest import LiveServer
from tests.server.wire import Answer, chat_body, message_body, response_body, send
from tests.smollm2 import SMOLLM2, needs_smollm2

pytestmark = needs_smollm2

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 24},
        "country": {"type": "string", "maxLength": 24},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "rivers": {"type": "array", "items": {"enum": ["Seine", "Rhine", "Danube"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "country", "population", "rivers"],
    "additionalProperties": False,
}
ASKED = "Tell me of Paris, as JSON with city, country, population and rivers."
LIMIT = 160
REPEATED = "Say this three times: one two three four five six seven eight nine ten."
STREAMED: dict[str, Any] = {"/v1/chat/completions": {"stream_options": {"include_usage": True}}}
NEVER = ["\u2603", "zzzz"]


@dataclass(frozen=True)
class Told:
    """What one answer came to."""

    text: str
    reason: str
    stop: str | None  # Anthropic's dialect says which
    num_tokens: int
    tokens: tuple[tuple[str, float], ...] = ()  # with their log-probabilities, where the dialect was asked for them


def chat(stops: list[str]) -> tuple[str, dict[str, Any]]:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    return "/v1/chat/completions", chat_body(
        ASKED, max_tokens=LIMIT, response_format=form, logprobs=True, stop=stops or None
    )


def messages(stops: list[str]) -> tuple[str, dict[str, Any]]:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    return "/v1/messages", message_body(ASKED, max_tokens=LIMIT, output_config=form, stop_sequences=stops)


def responses(stops: list[str]) -> tuple[str, dict[str, Any]]:
    form = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}
    return "/v1/responses", {**response_body(ASKED, max_output_tokens=LIMIT, stop=stops or None), "text": form}


def read_chat(answer: Answer) -> Told:
    if answer.headers["content-type"].startswith("text/event-stream"):
        chunks = [json.loads(data) for _, data in answer.events[:-1]]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        reason, usage = choices[-1]["finish_reason"], chunks[-1]["usage"]
    else:
        choices = answer.json["choices"]
        text, reason, usage = choices[0]["message"]["content"], choices[0]["finish_reason"], answer.json["usage"]
    each = [token for choice in choices for token in (choice.get("logprobs") or {}).get("content") or ()]
    tokens = tuple((token["token"], token["logprob"]) for token in each)
    return Told(text, reason, None, usage["completion_tokens"], tokens)


def read_messages(answer: Answer) -> Told:
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(data) for _, data in answer.events]
        text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
        (end,) = [e for e in events if e["type"] == "message_delta"]
        return Told(text, end["delta"]["stop_reason"], end["delta"]["stop_sequence"], end["usage"]["output_tokens"])
    said = answer.json
    return Told(said["content"][0]["text"], said["stop_reason"], said["stop_sequence"], said["usage"]["output_tokens"])


def read_responses(answer: Answer) -> Told:
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(data) for _, data in answer.events]
        said = events[-1]["response"]
        text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
        assert text == said["output"][0]["content"][0]["text"]
    else:
        said = answer.json
        text = said["output"][0]["content"][0]["text"]
    return Told(text, said["status"], None, said["usage"]["output_tokens"])


DIALECTS = ((chat, read_chat), (messages, read_messages), (responses, read_responses))


Key = tuple[str, bool]
"""Dialect, and whether the answer is streamed."""


def tell_all(live: LiveServer, stops: list[str]) -> dict[Key, Told]:
    """Every dialect, whole and streamed, with these stop strings, at once beside an answer that can be drafted."""
    repeated = chat_body(REPEATED, max_tokens=80)
    with ThreadPoolExecutor(16) as pool:
        beside = pool.submit(send, live.port, "POST", "/v1/chat/completions", repeated)
        asked = {
            (ask.__name__, is_streamed): (read, pool.submit(send, live.port, "POST", path, body | extra))
            for ask, read in DIALECTS
            for path, body in [ask(stops)]
            for is_streamed, extra in ((False, {}), (True, {"stream": True, **STREAMED.get(path, {})}))
        }
        assert beside.result().status == 200
        for _, sent in asked.values():
            assert sent.result().status == 200, sent.result().body
        return {key: read(sent.result()) for key, (read, sent) in asked.items()}


@pytest.fixture(scope="module")
def both() -> Iterator[list[LiveServer]]:
    """One server that guesses, and one that doesn't."""
    options: dict[str, Any] = {"kv_memory_bytes": 64 << 20, "max_model_len": 512, "threads": None}
    servers = [LiveServer(str(SMOLLM2), debug=False, speculation=kind, **options) for kind in ("prompt_lookup", "off")]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.check_idle()
        server.stop()


def test_an_answer_of_a_form_is_the_same_and_has_it_whoever_asks_and_however(both: list[LiveServer]) -> None:
    plain, never = ([tell_all(live, stops) for live in both] for stops in ([], NEVER))

    assert plain[0] == plain[1] == never[0] == never[1], "to the token, and its log-probability to the bit"
    text = plain[0]["chat", False].text
    jsonschema.validate(json.loads(text), SCHEMA)
    ends = {"chat": "stop", "messages": "end_turn", "responses": "completed"}
    for (dialect, is_streamed), told in plain[0].items():
        assert (told.text, told.reason, told.stop) == (text, ends[dialect], None)
        assert told.tokens == plain[0][dialect, not is_streamed].tokens
    assert "".join(token for token, _ in plain[0]["chat", False].tokens) == text
    accepted = [live.service.engine.stats.accepted_tokens for live in both]
    assert accepted[0] > 0 == accepted[1], "there were guesses beside them, and they came true"


def test_a_stop_string_cuts_a_form_where_it_begins_and_is_told_of(both: list[LiveServer]) -> None:
    text = tell_all(both[1], [])["chat", False].text
    for stop in (text[len(text) // 2 :][:3], "}"):
        told = [tell_all(live, [*NEVER, stop]) for live in both]

        assert told[0] == told[1]
        ends = {"chat": ("stop", None), "messages": ("stop_sequence", stop), "responses": ("completed", None)}
        for (dialect, _), answer in told[0].items():
            assert answer.text == text[: text.index(stop)]
            assert (answer.reason, answer.stop) == ends[dialect]
