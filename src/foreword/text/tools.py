"""Tools a model may call, and the calls it makes, as all dialects and templates share them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from foreword.core.errors import InvalidRequestError
from foreword.text.messages import plain_value

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Tool(Struct, frozen=True):
    """A function the model may call. `parameters` is a JSON schema, its keys in the caller's order.

    `strict` is the caller's wish that arguments be held to the schema while they are generated; the model isn't told.

    Raises:
        InvalidRequestError: the name is none, or the schema isn't JSON.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidRequestError("tools", "names of 1 to 128 letters, digits, _ and -", self.name)
        if not isinstance(self.parameters, Mapping):
            raise InvalidRequestError("tools", "a JSON schema for the parameters", self.parameters)
        if self.description is not None and not isinstance(self.description, str):
            raise InvalidRequestError("tools", "text as description", self.description)
        plain_value(self.parameters, "tools")

    def as_json(self) -> dict[str, Any]:
        """What templates are given: always the same keys in the same order, so that equal tools begin prompts alike."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class ToolCall(Struct, frozen=True):
    """One call. `arguments` is a JSON object as the model wrote it."""

    name: str
    arguments: str


def call_json(call_id: str, name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """An earlier call as templates take it: arguments as an object, where the text given is one."""
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = None
        arguments = value if isinstance(value, dict) else arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def check_tools(tools: Sequence[Tool]) -> None:
    """Refuse too many tools, and two of one name.

    Raises:
        InvalidRequestError: there are.
    """
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError("tools", f"at most {MAX_TOOLS} tools", len(tools))
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise InvalidRequestError("tools", "tools with names of their own", tool.name)
        seen.add(tool.name)


def tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Names of tools given as templates take them: `{"type": "function", "function": {…}}`, or the function alone.

    Raises:
        InvalidRequestError: one has none.
    """
    names = set()
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            raise InvalidRequestError("tools", 'tools like {"type": "function", "function": {"name": …}}', tool)
        names.add(name)
    return frozenset(names)
