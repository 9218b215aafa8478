"""OpenAI's tools: what clients send, and what they are sent back."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from foreword.server.errors import unsupported
from foreword.server.ids import new_hex
from foreword.server.tool_use import ToolUse
from foreword.text.early_calls import ToolCallDelta
from foreword.text.tools import MAX_TOOLS, Tool, ToolCall


class FunctionDefinition(msgspec.Struct, forbid_unknown_fields=True):
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """A tool with arguments in JSON."""

    function: FunctionDefinition


class CustomTool(msgspec.Struct, tag="custom", tag_field="type"):
    """Not supported: a tool that takes free text."""


ChatTool = FunctionTool | CustomTool
ChatTools = Annotated[list[ChatTool], Meta(max_length=MAX_TOOLS)]


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function by name."""

    name: str


class FunctionChoice(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """This one has to be called; or, in a list, may be."""

    function: NamedFunction


class CustomChoice(msgspec.Struct, tag="custom", tag_field="type"):
    """Not supported."""


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice | CustomChoice], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(msgspec.Struct, tag="allowed_tools", tag_field="type", forbid_unknown_fields=True):
    """Only some of the tools, though all are in the prompt."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | FunctionChoice | CustomChoice | AllowedChoice


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """What was called, and how."""

    name: str
    arguments: str


class FunctionCall(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """A call in an earlier answer."""

    id: str
    function: CalledFunction


class CustomCall(msgspec.Struct, tag="custom", tag_field="type"):
    """Not supported."""


MessageCall = FunctionCall | CustomCall


def tools_of(tools: list[ChatTool] | None) -> tuple[Tool, ...]:
    """The tools of a request.

    Raises:
        ApiError, InvalidRequestError: 400, one isn't a function, or is malformed.
    """
    found = []
    for index, tool in enumerate(tools or ()):
        if isinstance(tool, CustomTool):
            raise unsupported(f"tools[{index}].custom")
        given = tool.function
        parameters = {} if given.parameters is None else {"parameters": given.parameters}
        found.append(Tool(given.name, given.description, strict=bool(given.strict), **parameters))
    return tuple(found)


def tool_use(tools: list[ChatTool] | None, choice: ToolChoice | None, is_parallel: bool | None) -> ToolUse:
    """What a request says of tools.

    Raises:
        ApiError, InvalidRequestError: 400, as above, or a choice that can't be.
    """
    given, parallel = tools_of(tools), is_parallel is not False
    match choice:
        case None:
            return ToolUse(given, is_parallel=parallel)
        case FunctionChoice():
            return ToolUse(given, "required", frozenset({choice.function.name}), is_parallel=False)
        case AllowedChoice():
            allowed = choice.allowed_tools
            names = frozenset(_name(each, "tool_choice") for each in allowed.tools)
            return ToolUse(given, allowed.mode, names, parallel)
        case CustomChoice():
            raise unsupported("tool_choice.custom")
    return ToolUse(given, choice, is_parallel=parallel)


def call_object(call: ToolCall) -> dict[str, object]:
    """A call in a whole answer."""
    return {"id": _new_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_delta(delta: ToolCallDelta) -> dict[str, object]:
    """A part of a call in a stream: an id and a name first, arguments after."""
    if delta.name is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": _new_id(), "type": "function", "function": function}


def _new_id() -> str:
    return f"call_{new_hex(12)}"


def _name(choice: FunctionChoice | CustomChoice, where: str) -> str:
    if isinstance(choice, CustomChoice):
        raise unsupported(f"{where}.custom")
    return choice.function.name
