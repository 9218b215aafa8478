"""An answer that may call a tool and, where it does not, has a form: in every dialect and every format of calls."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.server.conftest import MODEL, LiveServer
from tests.server.test_tools import ARGUMENTS, FUNCTION, TOOL, USER
from tests.server.test_tools import client as client
from tests.server.test_tools import live as live

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["friend", "foe"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "visitor", "schema": FORM}}
FLAT = {"type": "json_schema", "name": "visitor", "schema": FORM}


def bias(letter: str) -> dict[str, int]:
    """A byte is a token: its id as a name, and more than any other logit."""
    from tokenizers import pre_tokenizers

    return {str(sorted(pre_tokenizers.ByteLevel.alphabet()).index(letter)): 100}


def fits(text: str | None) -> bool:
    return json.loads(text or "") in ({"kind": "friend"}, {"kind": "foe"})


def asked(**more: Any) -> Any:
    body = {"model": MODEL, "messages": [USER], "tools": [FUNCTION], "response_format": NAMED, "temperature": 0}
    return body | {"max_tokens": 200} | more


def test_it_has_the_form_where_it_is_no_call(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**asked(logit_bias=bias("{") | bias("k")))
    chunks = list(client.chat.completions.create(**asked(logit_bias=bias("{") | bias("k"), stream=True)))

    message = answer.choices[0].message
    assert message.tool_calls is None
    assert fits(message.content)
    assert answer.choices[0].finish_reason == "stop"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == message.content


def test_a_call_is_one_still(client: openai.OpenAI) -> None:
    for choice in ({}, {"tool_choice": "required"}):
        called = bias("<") | bias("n") | {"258": 100}  # 258: Mistral's opener
        answer = client.chat.completions.create(**asked(logit_bias=called, parallel_tool_calls=False, **choice))
        (call,) = answer.choices[0].message.tool_calls or []

        assert answer.choices[0].message.content is None
        assert answer.choices[0].finish_reason == "tool_calls"
        assert json.loads(call.function.arguments) == ARGUMENTS


def test_tools_that_may_not_be_called_leave_the_form_alone(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**asked(tool_choice="none", logit_bias=bias("<")))

    assert fits(answer.choices[0].message.content)


def test_the_same_in_the_other_dialects(live: LiveServer, client: openai.OpenAI) -> None:
    tool = {"type": "function", "name": "weather", "parameters": FUNCTION["function"]["parameters"]}
    body: Any = {"model": MODEL, "input": "Who?", "tools": [tool], "text": {"format": FLAT}, "max_output_tokens": 200}
    body |= {"parallel_tool_calls": False}
    one: Any = {"type": "auto", "disable_parallel_tool_use": True}
    config: Any = {"format": {"type": "json_schema", "schema": FORM}}
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=30) as other:
        for seed in range(4):
            response = client.responses.create(**body, extra_body={"seed": seed})
            (item,) = response.output
            assert item.type == "function_call" or fits(response.output_text)

            given: Any = {"tools": [TOOL], "tool_choice": one, "output_config": config, "extra_body": {"seed": seed}}
            message = other.messages.create(model=MODEL, messages=[USER], max_tokens=200, **given)
            (block,) = message.content
            assert block.type == "tool_use" or fits(block.text)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}}, "schema"),
        ({"response_format": None, "structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs.grammar"),
    ],
)
def test_what_can_not_be_is_told_by_its_own_name(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=asked(**fields), cast_to=object)

    assert (caught.value.param or "").endswith(param)
