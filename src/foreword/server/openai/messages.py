"""OpenAI's messages as the chat template reads them."""

from collections.abc import Sequence

from foreword.server.errors import ApiError
from foreword.server.openai.schema import ChatMessage, RefusalPart, TextPart, unsupported

_ROLES = {"developer": "system"}  # models we load know no developer; its words stand where a system's do


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, object]]:
    """Messages with text as content.

    Raises:
        ApiError: 400, content that isn't text, or tool calls.
    """
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain(message: ChatMessage, where: str) -> dict[str, object]:
    for name in ("audio", "tool_calls", "function_call"):
        if getattr(message, name):
            raise unsupported(f"{where}.{name}")
    if message.role in ("tool", "function"):
        raise unsupported(f"{where}.role")
    content = _text(message, f"{where}.content")
    plain: dict[str, object] = {"role": _ROLES.get(message.role, message.role), "content": content}
    if message.name is not None:
        plain["name"] = message.name
    return plain


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
