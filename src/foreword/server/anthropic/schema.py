"""What Anthropic's clients send, as strict types. Classes of fields as in `foreword.server.openai.schema`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from foreword.core.sampling_params import SamplingParams
from foreword.server.anthropic.cache_control import SYSTEM, CacheControl, Slot, resolve_breakpoints
from foreword.server.anthropic.tools import ToolChoice, tool_slots, tool_use
from foreword.server.errors import ApiError, unsupported
from foreword.server.forms import OutputConfig, output_format
from foreword.server.limits import MAX_MESSAGES
from foreword.server.tenants import check_salt
from foreword.server.tool_use import ToolUse, result_name
from foreword.text.tools import MAX_TOOLS, call_json

MESSAGES_IGNORED = ("inference_geo", "metadata", "service_tier", "user_profile_id")
MESSAGES_REFUSED = (
    "container",
    "speed",
    "thinking",
    "workspace_id",
)
_HARMLESS: dict[str, tuple[object, ...]] = {
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
}


class TextBlock(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Text. `citations` come back from answers of other servers: ignored."""

    text: str
    cache_control: CacheControl | None = None
    citations: Any = None


class ImageBlock(msgspec.Struct, tag="image", tag_field="type"):
    """Not supported: nothing is ever fetched."""


class DocumentBlock(msgspec.Struct, tag="document", tag_field="type"):
    """Not supported."""


class ToolUseBlock(msgspec.Struct, tag="tool_use", tag_field="type", forbid_unknown_fields=True):
    """A call in an earlier answer. What the last two say is of Anthropic's own tools: ignored."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Any = None
    toolset_name: Any = None


class ToolResultBlock(msgspec.Struct, tag="tool_result", tag_field="type", forbid_unknown_fields=True):
    """What a tool answered."""

    tool_use_id: str
    content: "str | list[TextBlock | ImageBlock | DocumentBlock | OtherResult] | None" = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: Any = None


class SearchResultBlock(msgspec.Struct, tag="search_result", tag_field="type"):
    """Not supported."""


class ToolReferenceBlock(msgspec.Struct, tag="tool_reference", tag_field="type"):
    """Not supported."""


class BrowserStateBlock(msgspec.Struct, tag="browser_state", tag_field="type"):
    """Not supported."""


OtherResult = SearchResultBlock | ToolReferenceBlock | BrowserStateBlock


class ThinkingBlock(msgspec.Struct, tag="thinking", tag_field="type"):
    """Not supported."""


Block = TextBlock | ImageBlock | DocumentBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock


class InputMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class DiagnosticsOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Asks what has changed since the request of an earlier answer; null asks to be remembered."""

    previous_message_id: Annotated[str, Meta(max_length=256)] | None = None


class Conversation(msgspec.Struct, kw_only=True):
    """Fields that a request for an answer and one for a count have in common."""

    model: str
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    cache_control: CacheControl | None = None
    cache_salt: str | None = None  # ours: narrows the namespace of shared prefixes

    output_config: OutputConfig | None = None
    speed: Any = None
    thinking: Any = None
    tool_choice: ToolChoice | None = None
    tools: Annotated[list[Any], Meta(max_length=MAX_TOOLS)] | None = None
    user_profile_id: Any = None
    workspace_id: Any = None

    def check(self) -> None:
        """Refuse what would matter and isn't supported, and breakpoints that break Anthropic's rules.

        Raises:
            ApiError, InvalidRequestError: 400 with the field's name.
        """
        check_salt(self.cache_salt)
        for name in MESSAGES_REFUSED:
            value = getattr(self, name, None)
            if value is not None and value not in _HARMLESS.get(name, ()):
                raise unsupported(name)
        self._check_output()
        self.slots()

    def _check_output(self) -> None:
        config = self.output_config
        if config is not None and config.effort is not None:
            raise unsupported("output_config.effort")
        if config is None or config.format is None:
            return
        if self._has_prefill:
            name = "output_config.format"
            raise ApiError(400, f"{name}: not together with a last turn that begins it", name)

    def tool_use(self) -> ToolUse:
        """What is said of tools.

        Raises:
            ApiError, InvalidRequestError: 400.
        """
        return tool_use(self.tools, self.tool_choice)

    def template_messages(self) -> list[dict[str, object]]:
        """System and turns with text as content; the last turn may be the beginning of the answer, see `prefill`.

        Raises:
            ApiError: 400, content that isn't text, a call or its result, or is empty.
        """
        plain: list[dict[str, object]] = []
        if self.system:
            plain.append({"role": "system", "content": _text(self.system, "system")})
        turns = self.messages[:-1] if self._has_prefill else self.messages
        calls: dict[str, str] = {}  # names by ids, so far
        for index, message in enumerate(turns):
            plain += _plain(message, f"messages[{index}].content", calls)
        return plain

    def prefill(self) -> str:
        """What the answer has to begin with: the last turn, if it is the assistant's.

        Raises:
            ApiError: 400, it ends with white space, which no model goes on from.
        """
        if not self._has_prefill:
            return ""
        where = f"messages[{len(self.messages) - 1}].content"
        text = _text(self.messages[-1].content, where)
        if text != text.rstrip():
            raise ApiError(400, f"{where}: final assistant content cannot end with trailing whitespace", where)
        return text

    @property
    def _has_prefill(self) -> bool:
        return self.messages[-1].role == "assistant"

    def slots(self) -> list[Slot]:
        """Every place that may carry a breakpoint, in the order of the prompt, with the automatic one where it falls.

        Raises:
            ApiError: 400, a rule of Anthropic's is broken.
        """
        return resolve_breakpoints(self._slots(), self.cache_control)

    def _slots(self) -> list[Slot]:
        slots = tool_slots(self.tools)
        if isinstance(self.system, list):
            slots += [_slot(block, f"system[{index}]", SYSTEM, index) for index, block in enumerate(self.system)]
        elif self.system:
            slots.append(Slot("system", None))
        for number, message in enumerate(self.messages):
            where = f"messages[{number}].content"
            if isinstance(message.content, str):
                slots.append(Slot(where, None, is_eligible=bool(message.content), message=number))
            else:
                slots += [_slot(block, f"{where}[{i}]", number, i) for i, block in enumerate(message.content)]
        return slots


class MessagesRequest(Conversation, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None  # ours

    inference_geo: Any = None
    metadata: Any = None
    service_tier: Any = None

    container: Any = None
    diagnostics: DiagnosticsOptions | None = None

    def sampling_params(self) -> SamplingParams:
        """The engine's parameters. With `max_tokens` 0 the prompt is read and stored, and nothing drawn.

        Raises:
            ApiError, InvalidRequestError: a value is out of its range.
        """
        if self.max_tokens == 0 and self.stream:
            raise ApiError(400, "max_tokens: 0 can't be streamed", "max_tokens")
        form = output_format(self.output_config)
        if self.max_tokens == 0 and form is not None:
            raise ApiError(400, "max_tokens: 0 has no answer that output_config.format could be of", "max_tokens")
        stops = self.stop_sequences or []
        if any(not stop.strip() for stop in stops):
            raise ApiError(400, "stop_sequences: each must contain more than white space", "stop_sequences")
        names = ("temperature", "top_k", "top_p", "seed")
        given: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        limit = max(self.max_tokens, 1)
        return SamplingParams(max_tokens=limit, stop=tuple(stops), structured_output=form, **given)


class CountRequest(Conversation, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/messages/count_tokens`."""


def _slot(block: Block, where: str, message: int, index: int) -> Slot:
    kind = str(block.__struct_config__.tag)
    if isinstance(block, TextBlock):
        return Slot(where, block.cache_control, bool(block.text), message, index, kind)
    control = block.cache_control if isinstance(block, ToolUseBlock | ToolResultBlock) else None
    return Slot(where, control, True, message, index, kind)


def _plain(message: InputMessage, where: str, calls: dict[str, str]) -> list[dict[str, object]]:
    """A turn as messages of the template: each result one of its own, what is said between them too."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": _text(message.content, where)}]
    plain: list[dict[str, object]] = []
    texts: list[Block] = []
    made: list[dict[str, object]] = []
    for index, block in enumerate(message.content):
        at = f"{where}[{index}]"
        if isinstance(block, ToolUseBlock):
            if message.role != "assistant":
                raise ApiError(400, f"{at}: only the assistant calls tools", at)
            made.append(call_json(block.id, block.name, block.input))
            calls[block.id] = block.name
        elif isinstance(block, ToolResultBlock):
            if message.role != "user":
                raise ApiError(400, f"{at}: only the user gives results of tools", at)
            plain += [{"role": "user", "content": _text(texts, where)}] if texts else []
            texts = []
            name = result_name(calls, block.tool_use_id, f"{at}.tool_use_id")
            said = _result(block, at)
            plain.append({"role": "tool", "content": said, "name": name, "tool_call_id": block.tool_use_id})
        else:
            _text([block], where, index)
            texts.append(block)
    if made:
        plain.append({"role": message.role, "content": _text(texts, where) if texts else "", "tool_calls": made})
    elif texts or not plain:
        plain.append({"role": message.role, "content": _text(texts, where)})
    return plain


def _result(block: ToolResultBlock, where: str) -> str:
    content = block.content
    said = content if isinstance(content, str) else _text(content, f"{where}.content") if content else ""
    return f"Error: {said}" if block.is_error else said


def _text(content: "str | Sequence[Block | OtherResult]", where: str, first: int = 0) -> str:
    """Text of blocks; `first` is the number of the first one, for errors."""
    if isinstance(content, str):
        if not content:
            raise ApiError(400, f"{where}: expected text that is not empty", where)
        return content
    if not content:
        raise ApiError(400, f"{where}: expected at least one block", where)
    texts = []
    for index, block in enumerate(content, first):
        at = f"{where}[{index}]"
        if not isinstance(block, TextBlock):
            kind = block.__struct_config__.tag
            raise ApiError(400, f"{at}: blocks of type {kind} are not supported", at, "unsupported_parameter")
        if not block.text:
            raise ApiError(400, f"{at}.text: text content blocks must be non-empty", f"{at}.text")
        texts.append(block.text)
    return "\n".join(texts)
