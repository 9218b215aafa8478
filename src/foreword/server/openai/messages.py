"""OpenAI's messages as the chat template reads them."""

from collections.abc import Sequence

from foreword.server.errors import ApiError, unsupported
from foreword.server.openai.schema import ChatMessage, RefusalPart, TextPart
from foreword.server.openai.tools import FunctionCall
from foreword.server.tool_use import result_name
from foreword.text.tools import call_json

_ROLES = {"developer": "system"}  # models we load know no developer; its words stand where a system's do


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, object]]:
    """Messages with text as content.

    Raises:
        ApiError: 400, content that isn't text, a call that isn't one of a function, a result of no call.
    """
    calls: dict[str, str] = {}  # names by ids, so far
    return [_plain(message, f"messages[{index}]", calls) for index, message in enumerate(messages)]


def _plain(message: ChatMessage, where: str, calls: dict[str, str]) -> dict[str, object]:
    for name in ("audio", "function_call"):
        if getattr(message, name):
            raise unsupported(f"{where}.{name}")
    if message.role == "function":
        raise unsupported(f"{where}.role")
    content = _text(message, f"{where}.content")
    plain: dict[str, object] = {"role": _ROLES.get(message.role, message.role), "content": content}
    if message.name is not None:
        plain["name"] = message.name
    if message.role == "tool":
        at = f"{where}.tool_call_id"
        if message.tool_call_id is None:
            raise ApiError(400, f"{at}: expected the id of the call that this answers", at)
        plain |= {"name": result_name(calls, message.tool_call_id, at), "tool_call_id": message.tool_call_id}
    elif message.tool_calls:
        made = _calls(message, where)
        calls |= {call.id: call.function.name for call in made}
        plain["tool_calls"] = [call_json(call.id, call.function.name, call.function.arguments) for call in made]
    return plain


def _calls(message: ChatMessage, where: str) -> list[FunctionCall]:
    if message.role != "assistant":
        raise ApiError(400, f"{where}.tool_calls: only the assistant calls tools", f"{where}.tool_calls")
    made = []
    for index, call in enumerate(message.tool_calls or ()):
        if not isinstance(call, FunctionCall):
            raise unsupported(f"{where}.tool_calls[{index}].custom")
        made.append(call)
    return made


def _text(message: ChatMessage, where: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        if message.role == "assistant":
            return message.refusal or ""
        raise ApiError(400, f"{where}: expected text", where)
    texts = []
    for index, part in enumerate(message.content):
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, RefusalPart):
            texts.append(part.refusal)
        else:
            raise unsupported(f"{where}[{index}].{part.__struct_config__.tag}")
    return "\n".join(texts)
