"""What a request says of tools, whichever dialect it is said in."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from foreword.core.errors import InvalidRequestError
from foreword.core.sampling_params import SamplingParams
from foreword.core.structured_output import StructuredOutput
from foreword.server.call_reading import CallReading
from foreword.server.errors import ApiError
from foreword.text.chat_template import ChatTemplate
from foreword.text.tool_grammar import calls_grammar, text_or_calls_grammar
from foreword.text.tools import Tool, check_tools

ToolMode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools, and which of them the answer may or must call.

    `none` leaves the tools in the prompt, so that what is stored of it stays in use, and calls in the text.

    Raises:
        InvalidRequestError: too many tools, two of one name, a choice that isn't among them.
    """

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = "auto"
    names: frozenset[str] | None = None  # only these; None for all
    is_parallel: bool = True  # more than one call in an answer

    def __post_init__(self) -> None:
        check_tools(self.tools)
        known = {tool.name for tool in self.tools}
        if self.mode == "required" and not self.tools:
            raise InvalidRequestError("tool_choice", "tools to choose from", "none")
        if self.names is not None and (not self.names or not self.names <= known):
            raise InvalidRequestError("tool_choice", "names of given tools", sorted(self.names - known))

    def as_json(self) -> list[dict[str, Any]]:
        """The tools as templates take them."""
        return [tool.as_json() for tool in self.tools]

    @property
    def allowed(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        return tuple(tool for tool in self.tools if self.names is None or tool.name in self.names)

    def reading(self, template: ChatTemplate) -> CallReading | None:
        """How to look for calls in the answer; None when there can be none.

        Raises:
            ApiError: 400, the model writes calls in a way that can't be read here.
        """
        if not self.tools or self.mode == "none":
            return None
        form = template.tool_format
        if form is None:
            told = "tools: this model's chat template has a format for tool calls that this server can't read"
            raise ApiError(400, told, "tools", "unsupported_parameter")
        names = frozenset(tool.name for tool in self.allowed)
        opener_id = template.call_opener_id
        return CallReading(form, names, None if self.is_parallel else 1, opener_id, self.is_held)

    @property
    def is_held(self) -> bool:
        """True when calls are held to a grammar: where one is required, or a tool is strict."""
        return self.mode == "required" or any(tool.strict for tool in self.allowed)

    def constrained(self, params: SamplingParams, template: ChatTemplate) -> SamplingParams:
        """The parameters that hold the answer to calls.

        All of it where a call is required; each call, once it begins, where a tool is strict.

        Raises:
            ApiError, InvalidRequestError: 400, a schema that can't be enforced, or two wishes that contradict.
        """
        reading = self.reading(template)
        if reading is None:
            return params
        if params.structured_output is not None:
            raise ApiError(400, "tools: an answer that may be a call can't have another form", "tools")
        if not self.is_held:
            return params
        form, opener_id = reading.form, reading.opener_id
        if self.mode == "required":
            grammar = calls_grammar(form, self.allowed, opener_id=opener_id, is_parallel=self.is_parallel)
        else:
            grammar = text_or_calls_grammar(form, self.allowed, opener_id=opener_id)
        return replace(params, structured_output=StructuredOutput(grammar=grammar))


class ToolBody(Protocol):
    """A request for an answer that may call tools."""

    def check(self) -> None:
        """Refuse what is not supported."""

    def sampling_params(self) -> SamplingParams:
        """The engine's parameters."""

    def tool_use(self) -> ToolUse:
        """What is said of tools."""


def params_and_tools(body: ToolBody, template: ChatTemplate) -> tuple[SamplingParams, ToolUse]:
    """What a body asks for, checked. Cost: O(its length).

    Raises:
        ApiError, InvalidRequestError: 400.
    """
    body.check()
    params, use = body.sampling_params(), body.tool_use()
    return use.constrained(params, template), use


def result_name(calls: Mapping[str, str], call_id: str, where: str) -> str:
    """The tool whose call a result answers, by the ids and names of earlier calls.

    Raises:
        ApiError: 400, no earlier call has this id.
    """
    if call_id not in calls:
        raise ApiError(400, f"{where}: expected the id of a call in an earlier message", where)
    return calls[call_id]
