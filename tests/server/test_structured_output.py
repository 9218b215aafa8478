"""Structured output through the official clients, on a random model: its form is all that an answer can get right."""

import json
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.server.conftest import MODEL, LiveServer
from tests.server.wire import chat_body, completion_body, send

MESSAGES: list[Any] = [{"role": "user", "content": "Who goes there?"}]


class Visitor(BaseModel):
    """What is asked for. Everything in it has an end, as a random model wouldn't find one by itself."""

    kind: Literal["friend", "foe"]
    is_armed: bool
    companions: list[Literal["dog", "horse"]] | None


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["friend", "foe"]}, "is_armed": {"type": "boolean"}},
    "required": ["kind", "is_armed"],
    "additionalProperties": False,
}


def a_visitor(text: str) -> bool:
    found = json.loads(text)
    return (
        list(found) == ["kind", "is_armed"]
        and found["kind"] in ("friend", "foe")
        and found["is_armed"] in (True, False)
    )


def openai_client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def anthropic_client(server: LiveServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize("temperature", [0, 1])
def test_parse_gives_an_object_of_the_clients_own_type(server: LiveServer, temperature: float) -> None:
    with openai_client(server) as client:
        for seed in range(3):
            answer = client.chat.completions.parse(
                model=MODEL,
                messages=MESSAGES,
                response_format=Visitor,
                temperature=temperature,
                seed=seed,
                max_tokens=300,
                logit_bias={"25": 5},
            )

            assert answer.choices[0].finish_reason == "stop"
            assert isinstance(answer.choices[0].message.parsed, Visitor)


def test_a_stream_is_the_same_answer_in_pieces(server: LiveServer) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "visitor", "schema": SCHEMA}}
    with openai_client(server) as client:
        whole = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, response_format=form, temperature=0, max_tokens=200
        )
        chunks = list(
            client.chat.completions.create(
                model=MODEL, messages=MESSAGES, response_format=form, temperature=0, max_tokens=200, stream=True
            )
        )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert a_visitor(text)


def test_several_answers_have_the_form_each(server: LiveServer) -> None:
    with openai_client(server) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            n=4,
            temperature=1.5,
            max_tokens=300,
            extra_body={"structured_outputs": {"json": SCHEMA}},
        )

    assert all(a_visitor(choice.message.content or "") for choice in answer.choices)


def test_an_answer_cut_off_says_so(server: LiveServer) -> None:
    with openai_client(server) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, temperature=0, max_tokens=1
        )
        with pytest.raises(openai.LengthFinishReasonError):
            client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Visitor, max_tokens=3)

    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("wanted", "answers"),
    [
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "(ab){2}|c"}, {"abab", "c"}),
        ({"grammar": 'start: "x" y\ny: "1" | "2"'}, {"x1", "x2"}),
    ],
)
def test_vllms_field_works_on_both_endpoints(server: LiveServer, wanted: dict[str, Any], answers: set[str]) -> None:
    with openai_client(server) as client:
        chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"structured_outputs": wanted})
        text = client.completions.create(model=MODEL, prompt="Well?", n=2, extra_body={"structured_outputs": wanted})

    assert chat.choices[0].message.content in answers
    assert {choice.text for choice in text.choices} <= answers
    assert all(choice.finish_reason == "stop" for choice in text.choices)


def test_anthropics_client_gets_its_form_too(server: LiveServer) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    with anthropic_client(server) as client:
        message = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=200, output_config=form)

    assert message.stop_reason == "end_turn"
    assert a_visitor(message.content[0].text)  # type: ignore[union-attr]  # a text block


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "hiccup"}}}}, "hiccup"),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "max_tokens": 0}, "max_tokens"),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
                "messages": [*MESSAGES, {"role": "assistant", "content": "{"}],
            },
            "output_config.format",
        ),
        ({"output_config": {"format": {"type": "text", "schema": {}}}}, "output_config.format"),
    ],
)
def test_what_can_not_be_is_refused_in_anthropics_words(server: LiveServer, fields: dict[str, Any], told: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 9} | fields
    with anthropic_client(server) as client, pytest.raises(anthropic.BadRequestError, match=told):
        client.messages.create(**body)


HOSTILE: list[dict[str, Any]] = [
    {"regex": "(a+)+$"},
    {"regex": "(a|a)*b"},
    {"regex": ".{1,100000}"},
    {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    {"regex": r"\p{L}{5000}"},
    {"regex": "((.{1,1000}){1,1000}){1,1000}"},
    {"regex": r"(.*a.{30}){3}"},
    {"json": {"$ref": "#"}},
    {"json": {"enum": list(range(9000))}},
    {"json": {"type": "string", "pattern": "\\i("}},
    {"json": {"$ref": "https://example.com/"}},
    {"json": '{"a":' * 9000},
    {"grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000},
    {"grammar": "start: " + "[" * 60 + '"a"' + "]" * 60},
    {"grammar": "start: a\na: b\nb: a"},
    {"grammar": 'start: ("a"{1,100000}){1,100000}'},
    {"grammar": "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(900)) + '\nr900: "a"\nstart: r0'},
    {"grammar": "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(100)) + '\nT100: "a"\nstart: T0'},
    {"grammar": f"start: {'a? ' * 500}\na: /[a-z]/ | /[a-z]+/"},
    {"grammar": "start: T\nT: " + " & ".join(f"/(.*{i}.*)/" for i in range(60))},
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_form_does_no_harm_to_the_next_request(server: LiveServer, number: int) -> None:
    """S-B5: no hang, no crash, no 5xx."""
    answer = send(server.port, "POST", "/v1/completions", completion_body() | {"structured_outputs": HOSTILE[number]})
    good = send(server.port, "POST", "/v1/chat/completions", chat_body() | {"structured_outputs": {"choice": ["yes"]}})

    assert answer.status in (200, 400), answer.body
    assert good.status == 200
    assert good.json["choices"][0]["message"]["content"] == "yes"


def test_a_form_out_of_work_ends_its_own_request_and_no_other(server: LiveServer) -> None:
    """Its parser's items grow with what it has said, until they are more than is granted."""
    sums = " | ".join("s " * terms for terms in range(2, 9))
    grammar = f"start: s\ns: {sums} | /[a-z]/"
    greedy = {"structured_outputs": {"grammar": grammar}, "ignore_eos": True, "max_tokens": 200}
    with openai_client(server) as client:
        alone = client.completions.create(model=MODEL, prompt="Well?", temperature=0, max_tokens=40).choices[0].text
        stream = client.completions.create(model=MODEL, prompt="Well?", temperature=0, max_tokens=40, stream=True)
        first = next(stream).choices[0].text
        failed = send(server.port, "POST", "/v1/completions", completion_body() | greedy)
        text = first + "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    assert failed.status == 400
    assert failed.json["error"]["code"] == "constraint_failed"
    assert "more work than is granted" in failed.json["error"]["message"]
    assert text == alone
