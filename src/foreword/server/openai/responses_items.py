"""Items of a conversation in `/v1/responses`: what clients send, what is listed, and the messages they stand for."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from foreword.server.errors import ApiError, unsupported
from foreword.server.ids import new_hex
from foreword.server.openai.schema import CacheBreakpoint, ChatMessage, RefusalPart, TextPart
from foreword.server.openai.tools import CalledFunction, FunctionCall, MessageCall


class InputText(msgspec.Struct, tag="input_text", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """Text."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class OutputText(msgspec.Struct, tag="output_text", tag_field="type", forbid_unknown_fields=True):
    """Text of an earlier answer, sent back; what is told beside it has no effect."""

    text: str
    annotations: Any = None
    logprobs: Any = None


class OutputRefusal(msgspec.Struct, tag="refusal", tag_field="type", forbid_unknown_fields=True):
    """A refusal of the assistant's, sent back."""

    refusal: str


class InputImage(msgspec.Struct, tag="input_image", tag_field="type"):
    """Not supported: nothing is ever fetched."""


class InputFile(msgspec.Struct, tag="input_file", tag_field="type"):
    """Not supported."""


class InputAudio(msgspec.Struct, tag="input_audio", tag_field="type"):
    """Not supported."""


Part = InputText | OutputText | OutputRefusal | InputImage | InputFile | InputAudio
ItemId = Annotated[str, Meta(max_length=128)]
_CALL_FIELDS = ("call_id", "name", "arguments", "output")
_ALLOWED = {
    "message": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "name", "output"),
}


class InputItem(msgspec.Struct, forbid_unknown_fields=True):
    """A message, a call of a function, or its result; a message may leave out its type."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    id: ItemId | None = None
    call_id: ItemId | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    status: Any = None  # told with items that come back, as the next four: without effect
    phase: Any = None
    caller: Any = None
    created_by: Any = None
    is_async: Any = msgspec.field(default=None, name="async")
    namespace: Any = None

    def check(self, where: str) -> None:
        """Refuse an item that lacks what its type needs, or has what is another's.

        Raises:
            ApiError: 400 with the field's name.
        """
        for name in _CALL_FIELDS:
            if getattr(self, name) is not None and name not in _ALLOWED[self.type]:
                raise ApiError(400, f"{where}.{name}: not a field of a {self.type}", f"{where}.{name}")
        if self.namespace is not None:
            raise unsupported(f"{where}.namespace")
        wanted = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
            "function_call_output": ("call_id", "output"),
        }
        for name in wanted[self.type]:
            if getattr(self, name) is None:
                raise ApiError(400, f"{where}.{name}: a {self.type} needs it", f"{where}.{name}")


def chat_messages(items: Sequence[InputItem], num_known: int = 0) -> list[ChatMessage]:
    """The messages that items stand for, as chat has them.

    What an assistant says and the calls behind it are one turn, as the model wrote them. The first `num_known` items
    are those of earlier requests; of the others, errors say which one of `input` is meant.

    Raises:
        ApiError: 400, an item is malformed, isn't text, or is the result of no call.
    """
    messages: list[ChatMessage] = []
    call_ids: set[str] = set()
    for number, item in enumerate(items):
        where = f"input[{number - num_known}]"
        item.check(where)
        if item.type == "message":
            _add_message(messages, item, where)
        elif item.type == "function_call":
            _add_call(messages, item)
            call_ids.add(item.call_id or "")
        else:
            if item.call_id not in call_ids:
                at = f"{where}.call_id"
                raise ApiError(400, f"{at}: expected the id of a call in an earlier item", at)
            result = _content(item.output or "", f"{where}.output")
            messages.append(ChatMessage("tool", result, tool_call_id=item.call_id))
    return messages


def _add_message(messages: list[ChatMessage], item: InputItem, where: str) -> None:
    assert item.role is not None
    assert item.content is not None
    content = _content(item.content, f"{where}.content")
    last = messages[-1] if messages else None
    if item.role == "assistant" and last is not None and last.tool_calls:
        last.content = f"{_joined(last.content)}{_joined(content)}"
    else:
        messages.append(ChatMessage(item.role, content))


def _add_call(messages: list[ChatMessage], item: InputItem) -> None:
    assert item.call_id is not None
    assert item.name is not None
    assert item.arguments is not None
    call: MessageCall = FunctionCall(item.call_id, CalledFunction(item.name, item.arguments))
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant":
        last.tool_calls = [*(last.tool_calls or ()), call]
    else:
        messages.append(ChatMessage("assistant", None, tool_calls=[call]))


def _content(content: str | list[Part], where: str) -> Any:
    """Content as a chat message has it."""
    if isinstance(content, str):
        return content
    if not content:
        raise ApiError(400, f"{where}: expected text", where)
    parts: list[TextPart | RefusalPart] = []
    for index, part in enumerate(content):
        if isinstance(part, InputText):
            parts.append(TextPart(part.text, part.prompt_cache_breakpoint))
        elif isinstance(part, OutputText):
            parts.append(TextPart(part.text))
        elif isinstance(part, OutputRefusal):
            parts.append(RefusalPart(part.refusal))
        else:
            raise unsupported(f"{where}[{index}].{part.__struct_config__.tag}")
    return parts


def _joined(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def listed_items(items: Sequence[InputItem]) -> list[dict[str, object]]:
    """Items as they are listed and kept: each with an id, content as parts."""
    return [_listed(item) for item in items]


def _listed(item: InputItem) -> dict[str, object]:
    if item.type == "function_call":
        told: dict[str, object] = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        prefix = "fc"
    elif item.type == "function_call_output":
        output = item.output if isinstance(item.output, str) else _parts(item.output or [], is_answer=False)
        told, prefix = {"call_id": item.call_id, "output": output}, "fco"
    else:
        content: Sequence[Part] = [InputText(item.content)] if isinstance(item.content, str) else item.content or []
        told = {"role": item.role, "content": _parts(content, is_answer=item.role == "assistant")}
        prefix = "msg"
    return {"id": item.id or new_id(prefix), "type": item.type, "status": "completed", **told}


def _parts(parts: Sequence[Part], *, is_answer: bool) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for part in parts:
        if isinstance(part, InputText | OutputText):
            if is_answer:
                found.append({"type": "output_text", "text": part.text, "annotations": []})
            else:
                found.append(msgspec.to_builtins(part if isinstance(part, InputText) else InputText(part.text)))
        else:
            found.append(msgspec.to_builtins(part))
    return found


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}_{new_hex(24)}"
