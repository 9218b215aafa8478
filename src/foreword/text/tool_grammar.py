"""Grammars that hold an answer to tool calls, in llguidance's dialect of Lark.

What they allow is what `foreword.text.tool_calls` finds, spaced as templates' `tojson` writes it: so a constrained call
reads the same when the conversation is rendered again, and its tokens are in the cache.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from foreword.core.errors import InvalidRequestError
from foreword.text.tool_formats import LLAMA3, MISTRAL, ToolFormat
from foreword.text.tools import Tool

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_TEXT = "TEXT: /(.|\\n)*/\n"


def calls_grammar(
    form: ToolFormat, tools: Sequence[Tool], *, opener_id: int | None, is_parallel: bool, answer: str | None = None
) -> str:
    """An answer that is one call, or several, and nothing else; or, with a rule for it, an answer of that form.

    `opener_id` is the format's opener where it is a special token, which no text can stand for.

    Raises:
        InvalidRequestError: a tool's parameters aren't a schema of an object.
    """
    start, rules = ("start: ", "") if answer is None else ("start: answer | ", f"answer: {answer}\n")
    if form is LLAMA3:
        start += "call\n"  # its templates know one call a message
    elif form is MISTRAL:
        more = ' (", " call)*' if is_parallel else ""
        start += f'{_opener(form, opener_id)} " [" call{more} "]"\n'
    else:
        tagged = _tagged(form, _opener(form, opener_id))
        more = ' ("\\n" tagged)*' if is_parallel else ""
        start += f"tagged{more}\ntagged: {tagged}\n"
    return start + rules + _calls(form, tools)


def text_or_calls_grammar(form: ToolFormat, tools: Sequence[Tool], *, opener_id: int | None) -> str:
    """An answer of text and calls, in which a call, once its opener is written, is one of these.

    Raises:
        InvalidRequestError: a tool's parameters aren't a schema of an object.
    """
    if form is LLAMA3:
        return "start: call | OTHER\nOTHER: /[^{ \\t\\r\\n](.|\\n)*/\n" + _calls(form, tools)
    if opener_id is None:
        opened = f"opened\nopened[lazy]: TEXT {json.dumps(form.opener)}\n"
    else:
        opened = f"TEXT <[{opener_id}]>\n"
    if form is MISTRAL:
        return f'start: TEXT | opening " [" call (", " call)* "]"\nopening: {opened}{_ANY_TEXT}' + _calls(form, tools)
    return f"start: tagged* TEXT\ntagged: {_tagged(form, 'opening')}\nopening: {opened}{_ANY_TEXT}" + _calls(
        form, tools
    )


def _tagged(form: ToolFormat, opener: str) -> str:
    return f'{opener} "\\n" call {json.dumps(f"{chr(10)}{form.closer}")}'


def _opener(form: ToolFormat, opener_id: int | None) -> str:
    return json.dumps(form.opener) if opener_id is None else f"<[{opener_id}]>"


def _calls(form: ToolFormat, tools: Sequence[Tool]) -> str:
    """A rule for any call. Its brace stands alone: lexemes are taken as long as can be, and an answer may begin so."""
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}\n"]
    for index, tool in enumerate(tools):
        before = json.dumps(f'"name": {json.dumps(tool.name)}, "{form.arguments_key}": ')
        rules.append(f'call_{index}: "{{" {before} %json {_schema(tool)} "}}"\n')
    return "".join(rules)


def _schema(tool: Tool) -> str:
    """The schema of a tool's arguments; of one that isn't strict, what can't be enforced is left out."""
    schema: Mapping[str, Any] = tool.parameters
    kind = schema.get("type")
    if kind not in (None, "object"):
        raise InvalidRequestError("tools", f"parameters of {tool.name} that are an object", kind)
    guidance = {**_SPACING, "lenient": not tool.strict}
    return json.dumps({"type": "object", **schema, "x-guidance": guidance})
