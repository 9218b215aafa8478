"""Whatever the grammars allow is found as calls; what they forbid can't be drawn."""

import json
import random
from typing import Any

import pytest

from foreword.core.errors import InvalidRequestError
from foreword.core.structured_output import StructuredOutput
from foreword.core.types import TokenId
from foreword.text.constraints import ConstraintCompiler, form_rule
from foreword.text.tool_calls import parse_tool_calls
from foreword.text.tool_formats import HERMES, LLAMA3, MISTRAL, ToolFormat
from foreword.text.tool_grammar import calls_grammar, text_or_calls_grammar
from foreword.text.tools import Tool, ToolCall
from tests.text.masks import allowed_ids
from tests.text.tiny import SPECIALS, byte_level_metadata, byte_level_tokenizer

CITY = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}
TOOLS = (Tool("city", None, CITY, strict=True), Tool("clock", None, {"properties": {}, "additionalProperties": False}))
NAMES = frozenset(tool.name for tool in TOOLS)
OPENER_ID = 0
_TOKENS = byte_level_metadata()["tokenizer.ggml.tokens"]
PLAIN = byte_level_tokenizer()
SPECIAL = {
    form: byte_level_tokenizer(tokens=[form.opener, *_TOKENS[1:]]) for form in (HERMES, LLAMA3, MISTRAL)
}  # in each the opener is the first control token
END = SPECIALS.index("<|im_end|>")
CITY_CALL = '{"name": "city", "arguments": {"n": 1}}'


def drawn(form: ToolFormat, grammar: str, special: bool, seed: int, limit: int = 400) -> tuple[str, bool]:
    """Text of tokens drawn at random among the allowed, and whether it came to an end."""
    tokenizer = SPECIAL[form] if special else PLAIN
    state = ConstraintCompiler(tokenizer).compile(StructuredOutput(grammar=grammar)).start()
    choose, text = random.Random(seed), b""
    for _ in range(limit):
        token = choose.choice(allowed_ids(state, tokenizer.vocab_size))
        if token in tokenizer.eos_token_ids:
            return text.decode("utf-8", "replace"), True
        text += tokenizer.token_bytes(token)
        state.accept(TokenId(token))
        if state.is_finished:
            return text.decode("utf-8", "replace"), True
    return text.decode("utf-8", "replace"), False


def accepts(grammar: str, text: str) -> bool:
    """True if a text is a beginning of what a grammar allows."""
    state = ConstraintCompiler(PLAIN).compile(StructuredOutput(grammar=grammar)).start()
    for token in PLAIN.encode(text, add_special_tokens=False):
        if not state.allowed_tokens[token >> 3] >> (token & 7) & 1:
            return False
        state.accept(TokenId(token))
    return True


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("form", [HERMES, LLAMA3, MISTRAL], ids=lambda form: form.name)
def test_whatever_is_drawn_is_calls(form: ToolFormat, parallel: bool, special: bool) -> None:
    grammar = calls_grammar(form, TOOLS, opener_id=OPENER_ID if special else None, is_parallel=parallel)

    for seed in range(6):
        text, ended = drawn(form, grammar, special, seed)
        if not ended:
            continue  # many calls
        found = parse_tool_calls(text, form, NAMES)
        calls = [part for part in found if isinstance(part, ToolCall)]
        assert calls == found
        assert len(calls) == 1 or parallel
        for call in calls:
            arguments = json.loads(call.arguments)
            assert call.arguments == json.dumps(arguments)  # as a template writes it
            assert arguments.get("n") in ((1, 22) if call.name == "city" else (None,))


def test_a_call_may_end() -> None:
    ended = [
        drawn(form, calls_grammar(form, TOOLS, opener_id=None, is_parallel=False), False, 1)[1]
        for form in (HERMES, LLAMA3, MISTRAL)
    ]

    assert ended == [True] * 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sure, a < b.", True),
        (f"Sure. <tool_call>\n{CITY_CALL}\n</tool_call> And <tool_call>\n{CITY_CALL}\n</tool_call> done", True),
        ("<tool_call>x", False),
        ('<tool_call>\n{"name": "clocks"', False),
        ('<tool_call>\n{"name": "city", "arguments": {"n": 3', False),
        ('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>', True),
    ],
)
def test_beside_text_a_call_that_has_begun_is_held_to_its_schema(text: str, expected: bool) -> None:
    assert accepts(text_or_calls_grammar(HERMES, TOOLS, opener_id=None), text) is expected


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (LLAMA3, "Sure {", True),
        (LLAMA3, '{"name": "city", "parameters": {"n": 22}}', True),
        (LLAMA3, '{"a', False),
        (MISTRAL, f"Sure [TOOL_CALLS] [{CITY_CALL}, {CITY_CALL}]", True),
        (MISTRAL, "[TOOL_CALLS]x", False),
    ],
)
def test_other_formats_do_the_same(form: ToolFormat, text: str, expected: bool) -> None:
    assert accepts(text_or_calls_grammar(form, TOOLS, opener_id=None), text) is expected


FORM = StructuredOutput(
    json_schema={"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False}
)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA3])
def test_beside_a_form_an_answer_has_it_or_is_calls(form: ToolFormat, special: bool) -> None:
    grammar = calls_grammar(
        form, TOOLS, opener_id=OPENER_ID if special else None, is_parallel=True, answer=form_rule(FORM)
    )

    kinds = set()
    for seed in range(12):
        text, _ = drawn(form, grammar, special, seed)
        parts = parse_tool_calls(text, form, NAMES)
        is_call = all(isinstance(part, ToolCall) for part in parts)
        kinds.add(is_call)
        assert is_call or json.loads(text) in ({}, {"a": 1})
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("wanted", "text", "expected"),
    [
        ({"regex": "a+"}, "aaa", True),
        ({"regex": "a+"}, "ab", False),
        ({"choice": ["yes", "no"]}, "no", True),
        ({"choice": ["yes", "no"]}, f"<tool_call>\n{CITY_CALL}\n</tool_call>", True),
        ({"choice": ["yes", "no"]}, f"no<tool_call>\n{CITY_CALL}\n</tool_call>", False),
        ({"json_object": True}, '{"b": [1, 2]}', True),
        ({"json_object": True}, "[", False),
    ],
)
def test_any_form_but_a_grammar_can_stand_beside_calls(wanted: dict[str, Any], text: str, expected: bool) -> None:
    rule = form_rule(StructuredOutput(**wanted))

    assert accepts(calls_grammar(HERMES, TOOLS, opener_id=None, is_parallel=False, answer=rule), text) is expected


def test_special_openers_open_calls_in_text() -> None:
    for form in (HERMES, MISTRAL):
        grammar = text_or_calls_grammar(form, TOOLS, opener_id=OPENER_ID)
        state = ConstraintCompiler(SPECIAL[form]).compile(StructuredOutput(grammar=grammar)).start()
        assert state.allowed_tokens[0] & 1
        state.accept(TokenId(OPENER_ID))
        first = {SPECIAL[form].token_bytes(i)[:1] for i in allowed_ids(state, SPECIAL[form].vocab_size)}
        assert first == {b"\n" if form is HERMES else b" "}


def test_what_is_not_strict_is_enforced_as_far_as_it_can_be() -> None:
    odd: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "contentEncoding": "x", "if": {}}}}
    lenient, strict = Tool("f", None, odd), Tool("f", None, odd, strict=True)

    assert accepts(calls_grammar(HERMES, [lenient], opener_id=None, is_parallel=False), "<tool_call>")
    with pytest.raises(InvalidRequestError):
        accepts(calls_grammar(HERMES, [strict], opener_id=None, is_parallel=False), "<tool_call>")


def test_parameters_must_be_an_object() -> None:
    with pytest.raises(InvalidRequestError, match="parameters of f"):
        calls_grammar(HERMES, [Tool("f", None, {"type": "string"})], opener_id=None, is_parallel=False)
