"""Reading an answer for calls costs the same for each character, whatever a model was made to say.

It is read in the engine's thread between two steps: what it takes, everybody waits for.
"""

import time

import pytest

from foreword.text.tool_calls import ToolCallParser, parse_tool_calls
from foreword.text.tool_formats import HERMES, LLAMA3, MISTRAL, ToolFormat

LENGTH = 100_000
CALL = '{"name": "f", "arguments": {}}'
ANSWERS: dict[str, tuple[ToolFormat, str, str]] = {
    "white space": (HERMES, "", " "),
    "white space before a bare call": (LLAMA3, "", "\n"),
    "white space behind text": (HERMES, "text", " \t"),
    "white space behind a call": (HERMES, f"<tool_call>{CALL}", "\n"),
    "white space behind a bare call": (LLAMA3, CALL, " "),
    "white space behind a semicolon": (LLAMA3, f"{CALL};", " "),
    "text": (HERMES, "", "word "),
    "openers": (HERMES, "", "<tool_call>"),
    "halves of an opener": (HERMES, "", "<tool_ca"),
    "openers of lists": (MISTRAL, "", "[TOOL_CALLS] ["),
    "depth": (HERMES, "<tool_call>", "["),
    "a string without end": (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "', "\\"),
    "a number without end": (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1', "0"),
    "calls": (HERMES, "", f"<tool_call>{CALL}</tool_call>"),
    "bare calls": (LLAMA3, "", f"{CALL};"),
    "a list of calls": (MISTRAL, "[TOOL_CALLS] [", f"{CALL},"),
    "objects that are no calls": (HERMES, "", '<tool_call>{"name": "other"}</tool_call>'),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_long_answer_is_read_in_proportion_to_its_length(name: str) -> None:
    form, start, repeated = ANSWERS[name]
    text = start + repeated * (LENGTH // len(repeated))
    parser, began = ToolCallParser(form, {"f"}), time.thread_time()

    for character in text:
        parser.push(character)
    parser.finish()
    parse_tool_calls(text, form, {"f"})

    assert time.thread_time() - began < 3  # a few tenths; with a square in it ten times that and more
