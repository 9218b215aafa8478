"""Tool calls are found in every format, whatever the pieces they arrive in; what is malformed is text to the letter."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.text.early_calls import ToolCallDelta
from foreword.text.tool_calls import ToolCallParser, ToolEvent, gathered, parse_tool_calls
from foreword.text.tool_formats import HERMES, LLAMA3, MISTRAL, ToolFormat, tool_format
from foreword.text.tools import ToolCall

FORMATS = (HERMES, LLAMA3, MISTRAL)
NAMES = frozenset({"f", "get_weather"})

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(st.text(max_size=3) | st.sampled_from(["</tool_call>", 'a"b']), values, max_size=3)
calls = st.builds(
    lambda name, given, indent: ToolCall(name, json.dumps(given, indent=indent)),
    st.sampled_from(sorted(NAMES)),
    arguments,
    st.sampled_from([None, 1]),
)
words = st.text("abc {}<>,.;é😀\n", min_size=1, max_size=8).map(str.strip).filter(bool)


def written(call: ToolCall, form: ToolFormat) -> str:
    return f'{{"name": "{call.name}", "{form.arguments_key}": {call.arguments}}}'


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    ends = [*sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]


def streamed(form: ToolFormat, pieces: Sequence[str], max_calls: int | None = None) -> list[str | ToolCall]:
    parser = ToolCallParser(form, NAMES, max_calls=max_calls)
    events: list[ToolEvent] = []
    for piece in pieces:
        events += parser.push(piece)
    return gathered([*events, *parser.finish()])


def parse(form: ToolFormat, text: str, **kwargs: Any) -> list[str | ToolCall]:
    return parse_tool_calls(text, form, NAMES, **kwargs)


@given(st.lists(words | calls, max_size=4), st.lists(st.integers(0, 500), max_size=12))
def test_hermes_texts_and_calls_come_out_as_they_went_in(parts: list[str | ToolCall], cuts: list[int]) -> None:
    text = "\n".join(p if isinstance(p, str) else f"<tool_call>\n{written(p, HERMES)}\n</tool_call>" for p in parts)

    expected: list[str | ToolCall] = []
    for part in parts:
        if isinstance(part, str) and expected:
            joined = "\n" + part  # after a call or a text, the line's end belongs to what follows
            expected = [*expected[:-1], expected[-1] + joined] if isinstance(expected[-1], str) else [*expected, joined]
        else:
            expected.append(part)
    assert streamed(HERMES, pieces_of(text, cuts)) == expected


@given(
    words.filter(lambda text: "[" not in text),
    st.lists(calls, min_size=1, max_size=3),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_a_mistral_list_of_calls_comes_out_call_by_call(said: str, made: list[ToolCall], cuts: list[int]) -> None:
    text = f"{said}[TOOL_CALLS] [{', '.join(written(call, MISTRAL) for call in made)}]"

    assert streamed(MISTRAL, pieces_of(text, cuts)) == [said, *made]


@given(
    st.lists(calls, min_size=1, max_size=3),
    st.sampled_from(["", "<|python_tag|>", "\n"]),
    st.lists(st.integers(0, 500), max_size=12),
)
def test_a_llama_answer_that_is_an_object_is_a_call(made: list[ToolCall], before: str, cuts: list[int]) -> None:
    text = before + "; ".join(written(call, LLAMA3) for call in made)

    assert streamed(LLAMA3, pieces_of(text, cuts)) == made


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(
    text=st.lists(
        st.sampled_from(
            [
                *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<tool_", "</", "[", "]", "<|"),
                *("{", "}", '"', "\\", ",", ";", " ", "\n", "x", "[]", "{}", '{"name": "f"', '"arguments": {}}', "NaN"),
                *('{"name": "f", "arguments": {"a": [1]}}', '{"name": "f", "parameters": {}}', '{"name": "g"}'),
            ]
        ),
        max_size=12,
    ).map("".join),
    cuts=st.lists(st.integers(0, 500), max_size=20),
    max_calls=st.none() | st.just(1),
)
def test_how_an_answer_is_cut_into_pieces_changes_nothing(
    form: ToolFormat, text: str, cuts: list[int], max_calls: int | None
) -> None:
    whole = parse(form, text, max_calls=max_calls)

    assert streamed(form, pieces_of(text, cuts), max_calls) == whole
    assert streamed(form, list(text), max_calls) == whole
    if not any(isinstance(part, ToolCall) for part in whole):
        assert "".join(map(str, whole)) == text  # nothing is lost of what is only text
    for part in whole:
        if isinstance(part, ToolCall):
            assert part.name in NAMES
            assert isinstance(json.loads(part.arguments), dict)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a": 1}',
        '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": ["f"], "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1e999999, "b": Infinity}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 400 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "line\nbreak"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>",
        '<tool_call>{"name": "f" "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}]</tool_call>',
        '<tool_call>[{"name": "f", "arguments": {}}, 1]</tool_call>',
        "<tool_call>[]</tool_call>",
        "<tool_call>f(1)</tool_call>",
        "<tool_call>" + "[" * 100_000,
        '<tool_call>{"a": "' + "x" * 100_000,
        "<tool_call>\n",
        "a < b <tool_call",
        " \n ",
    ],
)
def test_a_malformed_call_is_text(text: str) -> None:
    assert parse(HERMES, text) == [text]


def test_a_good_call_behind_a_malformed_one_is_found() -> None:
    good = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'

    assert parse(HERMES, f"<tool_call>f(</tool_call> {good}") == ["<tool_call>f(</tool_call>", ToolCall("f", "{}")]
    assert parse(HERMES, f"<tool_call>{good}") == ["<tool_call>", ToolCall("f", "{}")]


def test_a_call_without_its_closer_counts() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}'

    assert parse(HERMES, call) == [ToolCall("f", '{"a": 1}')]
    assert parse(HERMES, call + "</tool") == [ToolCall("f", '{"a": 1}')]
    assert parse(HERMES, call + call) == [ToolCall("f", '{"a": 1}')] * 2


def test_arguments_are_to_the_letter() -> None:
    text = '<tool_call>{"arguments": {"b":1.50,  "a": [ 1 ]}, "id": "x", "name": "f"}</tool_call>'

    assert parse(HERMES, text) == [ToolCall("f", '{"b":1.50,  "a": [ 1 ]}')]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    assert parse(HERMES, '<tool_call>{"name": "f"}</tool_call>') == [ToolCall("f", "{}")]


def test_after_the_last_call_wanted_all_is_dropped() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parser = ToolCallParser(HERMES, NAMES, max_calls=1)

    events = parser.push(f"Sure. {call[:-2]}")
    assert not parser.is_done  # the call is known, and its end may still come
    assert parser.push(f"l> {call} more") == []

    assert events == ["Sure.", ToolCallDelta(0, "f", ""), ToolCallDelta(0, None, "{}")]
    assert parser.is_done
    assert parser.push("more") == parser.finish() == []


def test_text_is_passed_on_at_once_where_no_call_can_begin() -> None:
    parser = ToolCallParser(HERMES, NAMES)

    assert parser.push("Hello, <t") == ["Hello,"]
    assert parser.push("ool>") == [" <tool>"]


@pytest.mark.parametrize(
    "text", ['{"name": "Ann", "parameters": {}}', '{"a": 1}', '{"name": "f"} x', 'x {"name": "f"}']
)
def test_a_llama_answer_that_is_other_json_is_text(text: str) -> None:
    found = parse(LLAMA3, text)

    assert found == ([ToolCall("f", "{}"), " x"] if text.endswith("} x") else [text])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("<tool_call>\n<function=name>", None),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
        ("[TOOL_CALLS]name[ARGS]{}", None),
        ("<|python_tag|>", LLAMA3),
        ('Respond in the format {"name": function name, "parameters": dictionary}', LLAMA3),
        ("{{ tools }}", None),
    ],
)
def test_a_format_is_known_by_its_template(source: str, expected: ToolFormat | None) -> None:
    assert tool_format(source) is expected
