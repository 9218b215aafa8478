"""What a request says of tools, whichever dialect it is said in."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from foreword.core.errors import InvalidRequestError
from foreword.core.sampling_params import SamplingParams
from foreword.core.structured_output import StructuredOutput
from foreword.server.call_reading import CallReading
from foreword.server.errors import ApiError
from foreword.text.chat_template import ChatTemplate
from foreword.text.constraints import form_rule
from foreword.text.tool_grammar import calls_grammar, text_or_calls_grammar
from foreword.text.tools import Tool, check_tools

ToolMode = Literal["none", "auto", "required"]


class ToolUse(Struct, frozen=True):
    """Tools, and which of them the answer may or must call.

    `none` leaves the tools in the prompt, so that what is stored of it stays in use, and calls in the text.

    Raises:
        InvalidRequestError: too many tools, two of one name, a choice that isn't among them.
    """

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = "auto"
    names: frozenset[str] | None = None  # only these; None for all
    is_parallel: bool = True  # more than one call in an answer
    has_form: bool = False  # an answer that is no call has a form of its own

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
        """True when what begins like a call must become one: where one is required, or a tool is strict.

        Beside a form it need not: in a format without opener an answer of the form may begin like a call.
        """
        return self.mode == "required" or (not self.has_form and any(tool.strict for tool in self.allowed))

    def constrained(self, params: SamplingParams, reading: CallReading | None) -> SamplingParams:
        """The parameters that hold the answer to calls, as `reading` looks for them.

        All of it where a call is required; each call, once it begins, where a tool is strict. Where another form is
        asked for too, the answer has that form, or is calls.

        Raises:
            ApiError, InvalidRequestError: 400, a schema that can't be enforced, or two wishes that contradict.
        """
        form = params.structured_output
        if reading is None:
            return params
        if self.mode == "required":
            return replace(params, structured_output=self._calls(reading))
        if form is not None:
            return replace(params, structured_output=self._form_or_calls(reading, form))
        if not self.is_held:
            return params
        grammar = text_or_calls_grammar(reading.form, self.allowed, opener_id=reading.opener_id)
        return replace(params, structured_output=StructuredOutput(grammar=grammar, origin="tools"))

    def _calls(self, reading: CallReading, answer: str | None = None) -> StructuredOutput:
        grammar = calls_grammar(
            reading.form, self.allowed, opener_id=reading.opener_id, is_parallel=self.is_parallel, answer=answer
        )
        return StructuredOutput(grammar=grammar, origin="tools")

    def _form_or_calls(self, reading: CallReading, form: StructuredOutput) -> StructuredOutput:
        if form.kind == "grammar":
            told = f"{form.name}: not together with tools that may be called, whose grammar is another"
            raise ApiError(400, told, form.name)
        return replace(self._calls(reading, form_rule(form)), parts=(form, self._calls(reading)))


class ToolBody(Protocol):
    """A request for an answer that may call tools."""

    def check(self) -> None:
        """Refuse what is not supported."""

    def sampling_params(self) -> SamplingParams:
        """The engine's parameters."""

    def tool_use(self) -> ToolUse:
        """What is said of tools."""


def params_and_tools(body: ToolBody, template: ChatTemplate) -> tuple[SamplingParams, ToolUse, CallReading | None]:
    """What a body asks for, checked, and how to look for calls in the answer. Cost: O(its length).

    Raises:
        ApiError, InvalidRequestError: 400.
    """
    body.check()
    params = body.sampling_params()
    use = replace(body.tool_use(), has_form=params.structured_output is not None)
    reading = use.reading(template)
    return use.constrained(params, reading), use, reading


def result_name(calls: Mapping[str, str], call_id: str, where: str) -> str:
    """The tool whose call a result answers, by the ids and names of earlier calls.

    Raises:
        ApiError: 400, no earlier call has this id.
    """
    if call_id not in calls:
        raise ApiError(400, f"{where}: expected the id of a call in an earlier message", where)
    return calls[call_id]
