"""Tools for a chat template that knows none: told in the system message, called and answered in Hermes' words.

The section stands before the system's own text: what changes least comes first, so that a change of the system text
or one more tool at the end leaves what was stored before it in use.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_AFTER = (
    "</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_RESULT_ROLES = ("tool", "function", "ipython")


def mentions_tools(messages: Sequence[Mapping[str, Any]]) -> bool:
    """True if a message calls a tool or holds what one answered."""
    return any(message["role"] in _RESULT_ROLES or message.get("tool_calls") for message in messages)


def with_tools_told(messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> list[dict[str, Any]]:
    """The same conversation in the words of `system`, `user` and `assistant` alone.

    Results that follow one another are one message of the user's.
    """
    told: list[dict[str, Any]] = []
    rest = list(messages)
    if tools:
        section = _BEFORE + "".join(f"{_json(tool)}\n" for tool in tools) + _AFTER
        own = ""
        if rest and rest[0]["role"] in ("system", "developer"):
            own = "\n\n" + rest.pop(0).get("content", "")
        told.append({"role": "system", "content": section + own})
    was_result = False
    for message in rest:
        is_result = message["role"] in _RESULT_ROLES
        if is_result and was_result:
            told[-1]["content"] += "\n" + _response(message)
        elif is_result:
            told.append({"role": "user", "content": _response(message)})
        else:
            told.append(_said(message))
        was_result = is_result
    return told


def with_short_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation with call ids of nine letters and digits, the only ones Mistral's templates take."""
    changed = []
    for message in messages:
        copy = dict(message)
        if "tool_call_id" in copy:
            copy["tool_call_id"] = _short_id(copy["tool_call_id"])
        if isinstance(calls := copy.get("tool_calls"), list):
            copy["tool_calls"] = [
                call | {"id": _short_id(call["id"])} if isinstance(call, dict) and "id" in call else call
                for call in calls
            ]
        changed.append(copy)
    return changed


def _short_id(call_id: object) -> object:
    if not isinstance(call_id, str) or _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _response(message: Mapping[str, Any]) -> str:
    return f"<tool_response>\n{message.get('content', '')}\n</tool_response>"


def _said(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    parts = [text] if (text := message.get("content")) else []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else {}
        name, arguments = _json(function.get("name", "")), function.get("arguments", {})
        written = arguments if isinstance(arguments, str) else _json(arguments)
        parts.append(f'<tool_call>\n{{"name": {name}, "arguments": {written}}}\n</tool_call>')
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return kept | {"content": "\n".join(parts)}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
