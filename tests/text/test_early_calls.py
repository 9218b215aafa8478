"""Calls held to a grammar are told of as they are written: in pieces, the same call, and cut off it stays a call."""

import json
import math
import random
import re
from collections.abc import Sequence
from typing import Any

import jiter
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.text.early_calls import MAX_HEAD, EarlyCalls, ToolCallDelta
from foreword.text.json_scanner import MAX_DEPTH, MAX_NUMBER
from foreword.text.partial_json import completed_object
from foreword.text.tool_calls import ToolCallParser, ToolEvent, gathered, parse_tool_calls
from foreword.text.tool_formats import HERMES, LLAMA3, MISTRAL, ToolFormat
from foreword.text.tool_grammar import calls_grammar, text_or_calls_grammar
from foreword.text.tools import Tool, ToolCall
from tests.text.test_tool_calls import NAMES, calls, pieces_of, words, written
from tests.text.test_tool_grammar import NAMES as DRAWN_NAMES
from tests.text.test_tool_grammar import TOOLS, accepts, drawn

FORMATS = (HERMES, LLAMA3, MISTRAL)
each_form = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)


def answer(parts: Sequence[ToolCall], form: ToolFormat) -> str:
    if form is HERMES:
        return "\n".join(f"<tool_call>\n{written(call, form)}\n</tool_call>" for call in parts)
    if form is MISTRAL:
        return f"[TOOL_CALLS] [{', '.join(written(call, form) for call in parts)}]"
    return written(parts[0], form)


def events_of(form: ToolFormat, pieces: Sequence[str], **others: Any) -> list[list[ToolEvent]]:
    parser = ToolCallParser(form, NAMES, is_held=True, **others)
    return [*(parser.push(piece) for piece in pieces), parser.finish()]


@each_form
@given(parts=st.lists(calls, min_size=1, max_size=3), cuts=st.lists(st.integers(0, 500), max_size=12))
def test_held_or_not_and_in_whatever_pieces_whole_calls_are_the_same(
    form: ToolFormat, parts: list[ToolCall], cuts: list[int]
) -> None:
    text = answer(parts, form)
    expected = parts[:1] if form is LLAMA3 else parts

    told = events_of(form, pieces_of(text, cuts))

    assert gathered(event for events in told for event in events) == expected
    assert parse_tool_calls(text, form, NAMES, is_held=True) == expected
    assert parse_tool_calls(text, form, NAMES) == expected


@each_form
@given(parts=st.lists(calls, min_size=1, max_size=3), text=words, stop=st.integers(0, 400))
def test_what_is_told_never_depends_on_what_comes_later(
    form: ToolFormat, parts: list[ToolCall], text: str, stop: int
) -> None:
    """A cut answer is a beginning of the whole one; a call is told of by its name, then by all that is there."""
    whole = answer(parts, form) if form is LLAMA3 else f"{text}\n{answer(parts, form)}"
    cut = whole[:stop]
    beginning = parse_tool_calls(cut, form, NAMES, is_held=True)
    full = parse_tool_calls(whole, form, NAMES, is_held=True)

    found, full_calls = ([part for part in told if isinstance(part, ToolCall)] for told in (beginning, full))
    assert len(found) <= len(full_calls)
    for part, same in zip(found, full_calls, strict=False):
        assert part.name == same.name
        assert same.arguments.startswith(part.arguments)
        assert isinstance(json.loads(completed_object(part.arguments)), dict)


@each_form
def test_arguments_come_as_they_are_written(form: ToolFormat) -> None:
    call = ToolCall("f", json.dumps({"text": "a long one, of many words", "more": [1, {"b": None}]}))

    told = events_of(form, list(answer([call], form)))

    arguments = [
        event.arguments
        for events in told
        for event in events
        if isinstance(event, ToolCallDelta) and event.name is None
    ]
    assert arguments == list(call.arguments)
    assert [e.name for events in told for e in events if isinstance(e, ToolCallDelta) and e.name] == ["f"]


@each_form
def test_not_held_a_call_is_told_of_when_it_is_complete(form: ToolFormat) -> None:
    text = answer([ToolCall("f", '{"a": 1}')], form)
    parser = ToolCallParser(form, NAMES)

    before = [parser.push(character) for character in text[: text.index("1}")]]

    assert not any(before)


@each_form
def test_one_call_is_enough_where_one_is_wanted(form: ToolFormat) -> None:
    parser = ToolCallParser(form, NAMES, max_calls=1, is_held=True)
    two = answer([ToolCall("f", '{"a": {}}'), ToolCall("get_weather", "{}")], form)

    found = gathered([*parser.push(two), *parser.finish()])

    assert found == [ToolCall("f", '{"a": {}}')]
    assert parser.is_done
    assert parser.num_calls == 1


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "g", "arguments": {"a',
        '<tool_call>\n{"name":"f", "arguments": {"a',
        '<tool_call>\n{"arguments": {"a": 1',
        '<tool_call>\n{"name": "f", "arguments": [',
    ],
)
def test_what_is_spelled_otherwise_is_held_back_as_before(text: str) -> None:
    assert parse_tool_calls(text, HERMES, NAMES, is_held=True) == [text]
    assert parse_tool_calls(text, HERMES, NAMES) == [text]


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,4})?", fullmatch=True) | st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(295, 320).map(lambda digits: "9" * digits),
    st.sampled_from(["", ".5", "e-20", "e3", "E+0"]),
)


@each_form
@given(number=numbers, depth=st.integers(0, 3) | st.integers(58, 70), cuts=st.lists(st.integers(0, 500), max_size=5))
def test_what_strict_clients_refuse_cuts_a_held_call_off_before_it(
    form: ToolFormat, number: str, depth: int, cuts: list[int]
) -> None:
    """A grammar allows any number and any depth. A call that isn't told of early is text then, streamed or not."""
    calls = [ToolCall("f", f'{{"a": {"[" * depth}{number}{"]" * depth}, "b": 1e3}}'), ToolCall("f", '{"c": 1}')]
    whole = answer(calls, form)
    parser = ToolCallParser(form, NAMES, is_held=True)

    found = gathered([*(event for piece in pieces_of(whole, cuts) for event in parser.push(piece)), *parser.finish()])

    assert found == parse_tool_calls(whole, form, NAMES, is_held=True)
    others = parse_tool_calls(whole, form, NAMES)
    beginning = re.findall("^-?[0-9]+", number)  # is beyond a double before its exponent can be known
    if (
        all(math.isfinite(float(text)) for text in [number, *beginning])
        and depth + (3 if form is MISTRAL else 2) <= MAX_DEPTH
    ):
        assert found == others == (calls[:1] if form is LLAMA3 else calls)
        assert not parser.is_cut
        return
    assert calls[0] not in others
    (call,) = found
    assert isinstance(call, ToolCall)
    assert len('{"a": ') <= len(call.arguments) < len(calls[0].arguments)
    assert calls[0].arguments.startswith(call.arguments)
    assert isinstance(msgspec.json.decode(completed_object(call.arguments)), dict)
    assert parser.is_cut
    assert parser.is_done


def test_a_number_without_end_is_cut_off_and_costs_little() -> None:
    for number in ("0." + "1" * MAX_NUMBER, "0e" + "9" * MAX_NUMBER, "1e-" + "0" * MAX_NUMBER):
        (call,) = parse_tool_calls(answer([ToolCall("f", f'{{"a": {number}}}')], HERMES), HERMES, NAMES, is_held=True)
        assert call == ToolCall("f", '{"a": ' + number[:MAX_NUMBER])


@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\u0041", "\x7f", "\x00"])
def test_grammars_allow_no_half_of_a_surrogate_pair(escape: str) -> None:
    """So that no held call needs to be looked at for one: what no escape spells, only whole characters can."""
    tools = [Tool("f", None, {"type": "object"})]
    grammar = calls_grammar(HERMES, tools, opener_id=None, is_parallel=True)
    text = answer([ToolCall("f", f'{{"a": "{escape}"}}')], HERMES)

    assert not accepts(grammar, text)
    assert accepts(grammar, text.replace(escape, "\\n\U0001f600"))


def test_a_call_that_breaks_is_cut_off_and_ends_the_answer() -> None:
    """No grammar lets it happen; should it, nothing that was told is taken back, and nothing behind it is told."""
    broken = '<tool_call>\n{"name": "f", "arguments": {"a": x}}\n</tool_call>'
    parser = ToolCallParser(HERMES, NAMES, is_held=True)

    events = parser.push(broken + "\n" + answer([ToolCall("get_weather", "{}")], HERMES)) + parser.finish()

    assert gathered(events) == [ToolCall("f", '{"a": ')]
    assert parser.is_cut
    assert parser.is_done


def test_a_head_without_end_is_not_kept() -> None:
    early = EarlyCalls(NAMES, 0)

    assert not any(early.take(character, 1) for character in '{"name": "' + "f" * MAX_HEAD + '", "arguments": {')
    assert not early.has_told


@pytest.mark.parametrize("required", [True, False])
@each_form
def test_whatever_a_grammar_allows_is_told_early_and_the_same(form: ToolFormat, required: bool) -> None:
    rng = random.Random(4)
    grammar = (
        calls_grammar(form, TOOLS, opener_id=None, is_parallel=True)
        if required
        else text_or_calls_grammar(form, TOOLS, opener_id=None)
    )

    for seed in range(4):
        text, is_ended = drawn(form, grammar, False, seed, 150)
        pieces = pieces_of(text, [rng.randrange(500) for _ in range(9)])
        parser = ToolCallParser(form, DRAWN_NAMES, is_held=True)
        found = gathered([*(event for piece in pieces for event in parser.push(piece)), *parser.finish()])
        assert found == parse_tool_calls(text, form, DRAWN_NAMES, is_held=True)
        if is_ended:
            assert found == parse_tool_calls(text, form, DRAWN_NAMES)


values = st.recursive(
    st.none() | st.booleans() | st.text(max_size=4) | st.integers(-999, 999) | st.floats(-9, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), values, max_size=4), st.integers(0, 200))
def test_a_cut_object_is_closed_as_clients_close_it(value: dict[str, Any], stop: int) -> None:
    """Anthropic's client reads a stream's arguments so, and a whole answer must say the same."""
    text = json.dumps(value, ensure_ascii=False)
    cut = text[: max(1, stop)]

    closed = json.loads(completed_object(cut))

    assert closed == jiter.from_json(cut.encode(), partial_mode=True)
    assert completed_object(text) == text


@pytest.mark.parametrize(
    ("cut", "closed"),
    [("", "{}"), ("{", "{}"), ('{"a": 12', '{"a": 12}'), ('{"a": 1.', "{}"), ('{"a": [1, -', '{"a": [1]}')],
)
def test_a_number_counts_with_the_digits_that_are_there(cut: str, closed: str) -> None:
    assert completed_object(cut) == closed
