"""Tools as `/v1/responses` has them: without the layer in which chat wraps a function."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from foreword.server.errors import ApiError, unsupported
from foreword.server.openai.tools import FunctionDefinition, FunctionTool, tools_of
from foreword.server.tool_use import ToolUse
from foreword.text.tools import MAX_TOOLS


class ResponseTool(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """A function the model may call. Tools that a server would run itself are none of ours."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: Any = None  # ignored: what comes back is for the model to read
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")


ResponseTools = Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)]


class NamedTool(msgspec.Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    """This one has to be called; or, in a list, may be."""

    name: str


class AllowedNames(msgspec.Struct, tag="allowed_tools", tag_field="type", forbid_unknown_fields=True):
    """Only some of the tools, though all are in the prompt."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


ResponseToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedNames


def chat_tools(tools: list[ResponseTool] | None) -> list[FunctionTool]:
    """The same tools as chat has them.

    Raises:
        ApiError: 400, one asks for what isn't there.
    """
    found = []
    for index, tool in enumerate(tools or ()):
        for name, value in (("defer_loading", tool.defer_loading), ("async", tool.is_async)):
            if value:
                raise unsupported(f"tools[{index}].{name}")
        if tool.allowed_callers not in (None, ["direct"]):
            raise unsupported(f"tools[{index}].allowed_callers")
        found.append(FunctionTool(FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict)))
    return found


def response_tool_use(
    tools: list[ResponseTool] | None, choice: ResponseToolChoice | None, is_parallel: bool | None
) -> ToolUse:
    """What a request says of tools.

    Raises:
        ApiError, InvalidRequestError: 400, a tool is malformed, or a choice that can't be.
    """
    given, parallel = tools_of([*chat_tools(tools)]), is_parallel is not False
    match choice:
        case NamedTool():
            return ToolUse(given, "required", frozenset({choice.name}), is_parallel=False)
        case AllowedNames():
            return ToolUse(given, choice.mode, frozenset(each.name for each in choice.tools), parallel)
        case None:
            return ToolUse(given, is_parallel=parallel)
    return ToolUse(given, choice, is_parallel=parallel)


def told_tools(tools: list[ResponseTool] | None) -> list[dict[str, object]]:
    """The tools of a request as its answer repeats them."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": bool(tool.strict),
        }
        for tool in tools or ()
    ]


def check_call_id(call_id: str | None, where: str) -> str:
    """The id that a call or its result must have.

    Raises:
        ApiError: 400, there is none.
    """
    if not call_id:
        raise ApiError(400, f"{where}.call_id: expected the id of a call", f"{where}.call_id")
    return call_id
