"""Anthropic's tools: what clients send, and what they are sent back."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from foreword.server.anthropic.cache_control import TOOLS, CacheControl, Slot
from foreword.server.body import as_refusal
from foreword.server.errors import ApiError
from foreword.server.ids import new_hex
from foreword.server.tool_use import ToolUse
from foreword.text.tools import Tool


class ToolDefinition(msgspec.Struct, forbid_unknown_fields=True):
    """A tool of the client's. `eager_input_streaming` is ignored: arguments come when they are certain."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None


class AutoChoice(msgspec.Struct, tag="auto", tag_field="type", forbid_unknown_fields=True):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(msgspec.Struct, tag="any", tag_field="type", forbid_unknown_fields=True):
    """Some tool has to be called."""

    disable_parallel_tool_use: bool | None = None


class NamedChoice(msgspec.Struct, tag="tool", tag_field="type", forbid_unknown_fields=True):
    """This tool has to be called."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(msgspec.Struct, tag="none", tag_field="type", forbid_unknown_fields=True):
    """No tool may be called."""


ToolChoice = AutoChoice | AnyChoice | NamedChoice | NoChoice


def tools_of(tools: Sequence[Any] | None) -> tuple[Tool, ...]:
    """The tools of a request.

    Raises:
        ApiError, InvalidRequestError: 400, one is of Anthropic's own, or malformed.
    """
    definitions = _definitions(tools)
    return tuple(Tool(each.name, each.description, each.input_schema, strict=bool(each.strict)) for each in definitions)


def tool_use(tools: Sequence[Any] | None, choice: ToolChoice | None) -> ToolUse:
    """What a request says of tools.

    Raises:
        ApiError, InvalidRequestError: 400, a tool of Anthropic's own, a malformed one, or a choice that can't be.
    """
    given = tools_of(tools)
    match choice:
        case None:
            return ToolUse(given)
        case NoChoice():
            return ToolUse(given, "none")
        case NamedChoice():
            names = frozenset({choice.name})
            return ToolUse(given, "required", names, is_parallel=not choice.disable_parallel_tool_use)
        case AnyChoice():
            return ToolUse(given, "required", is_parallel=not choice.disable_parallel_tool_use)
    return ToolUse(given, is_parallel=not choice.disable_parallel_tool_use)


def tool_slots(tools: Sequence[Any] | None) -> list[Slot]:
    """Every tool is a place for a breakpoint."""
    definitions = enumerate(_definitions(tools))
    return [Slot(f"tools[{index}]", each.cache_control, True, TOOLS, index, "tool") for index, each in definitions]


def tool_block(name: str, call_input: msgspec.Raw | dict[str, object]) -> dict[str, object]:
    """A call as a block; in a stream it begins with an empty input."""
    return {"type": "tool_use", "id": f"toolu_{new_hex(12)}", "name": name, "input": call_input}


def _definitions(tools: Sequence[Any] | None) -> list[ToolDefinition]:
    found = []
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind is not None and kind != "custom":
            told = "only tools of type custom are supported, which the client itself runs"
            raise ApiError(400, f"{where}.type: {told}", f"{where}.type", "unsupported_parameter")
        try:
            found.append(msgspec.convert(tool, ToolDefinition, strict=True))
        except msgspec.ValidationError as error:
            refusal = as_refusal(error)
            at = f"{where}.{refusal.param}" if refusal.param else where
            raise ApiError(400, f"{at}: {refusal.message}", at, refusal.code) from None
    return found
