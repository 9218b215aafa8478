"""What a caller says, checked and rebuilt from plain JSON types, so that a template meets nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foreword.core.errors import InvalidRequestError

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
MAX_MESSAGES = 10_000
MAX_DEPTH = 64
MAX_VALUES = 1_000_000


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as plain dicts: fields that are None left out, text parts joined by a newline.

    Raises:
        InvalidRequestError: not a list of 1 to `MAX_MESSAGES` messages, an unknown role, content that isn't text.
    """
    if not isinstance(messages, list | tuple) or not 0 < len(messages) <= MAX_MESSAGES:
        raise InvalidRequestError("messages", f"a list of 1 to {MAX_MESSAGES} messages", messages)
    return [_plain_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def plain_value(value: Any, field: str) -> Any:
    """A copy of a JSON value in exact built-in types.

    Raises:
        InvalidRequestError: something in it isn't JSON, or it is nested or large beyond measure.
    """
    return _Copier(field).copy(value, 0)


def strings_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            stack.extend(part.keys())
            stack.extend(part.values())
        elif isinstance(part, list | tuple):
            stack.extend(part)


def _plain_message(message: Mapping[str, Any], field: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(field, "a mapping with role and content", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequestError(f"{field}.role", ", ".join(sorted(ROLES)), role)
    content = message.get("content")
    if content is None and role != "assistant":
        raise InvalidRequestError(f"{field}.content", "text or a list of text parts", content)
    plain: dict[str, Any] = plain_value({k: v for k, v in message.items() if v is not None and k != "content"}, field)
    if content is not None:
        plain["content"] = content if type(content) is str else _joined(content, f"{field}.content")
    return plain


def _joined(content: Any, field: str) -> str:
    if isinstance(content, str):
        return str.__str__(content)
    if not isinstance(content, list | tuple):
        raise InvalidRequestError(field, "text or a list of text parts", content)
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequestError(f"{field}[{index}]", 'a part like {"type": "text", "text": "…"}', part)
        texts.append(text)
    return "\n".join(texts)


class _Copier:
    """One deep copy, with its limits."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._count = 0

    def copy(self, value: Any, depth: int) -> Any:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_VALUES:
            expected = f"values nested at most {MAX_DEPTH} deep, at most {MAX_VALUES} of them"
            raise InvalidRequestError(self._field, expected, "more")
        if value is None or type(value) in (str, int, float, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, Mapping):
            return {self._key(key): self.copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item, depth + 1) for item in value]
        raise InvalidRequestError(self._field, "JSON values", value)

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise InvalidRequestError(self._field, "text as names of fields", key)
        return str.__str__(key)
