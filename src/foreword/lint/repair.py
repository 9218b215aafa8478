"""What would mend a log: each cause has a change that is applied to every request, so that its gain can be replayed."""

import copy
import json
from collections.abc import Callable

from msgspec import Struct

from foreword.lint.causes import Cause, difference
from foreword.lint.request import Body, LoggedRequest, Path, compact

ADVICE: dict[Cause, str] = {
    "changing_id": "move ids behind everything that stays the same, to the end of the last message",
    "changing_time": "move dates and times to the end of the last message, or round them to the day",
    "user_data_in_system": "keep the system prompt the same for all; put what is the user's into the last message",
    "tools_reordered": "send tools in one order, such as by name",
    "tools_changed": "send the same tools every time, and restrict their use with tool_choice",
    "keys_reordered": "serialise objects with one order of keys",
    "whitespace_drift": "build prompts from one template, with one kind of line end and indent",
    "unstable_few_shots": "show the same examples in the same order, or place them behind what stays the same",
    "history_rewritten": "append to the history and leave what was sent as it was",
    "history_dropped": "drop old turns rarely and many at once: every drop loses the whole history",
    "model_changed": "keep a conversation on one model: K and V of one are nothing to another",
    "no_marker": "put cache_control on the request, or on the last block that stays the same",
    "marker_moved": "keep the marker on the last block that stays the same, or use the automatic one",
    "lookback_exceeded": "put a second marker within 20 positions of the last one",
    "ttl_passed": "ask for a lifetime of 1h, or keep the prefix warm",
    "under_minimum": "nothing under the minimum is cached: make the common part longer, or leave it",
}
_SYSTEM_TEXT: tuple[Cause, ...] = ("changing_id", "changing_time", "user_data_in_system")
MARKERS: tuple[Cause, ...] = ("no_marker", "marker_moved", "lookback_exceeded")
_EVERY = 15  # parts back to the third marker: from there the lookback reaches 34 parts back


class Repair(Struct, frozen=True):
    """One change to all requests.

    `path`, `before` and `after` say which text a moved piece lies in, and where; of texts that differ in white space
    alone `before` is the one to keep. `boundary` says where markers belong.
    """

    cause: Cause
    path: Path = ()
    before: str = ""
    after: str = ""
    boundary: int = 0  # leading parts that conversations have in common
    members: frozenset[str] = frozenset()  # texts of the messages whose order changes

    def apply(self, request: LoggedRequest) -> Body:
        """The request's body as it should have been sent; the given one is left as it is."""
        body = copy.deepcopy(request.body)
        if self.cause in _SYSTEM_TEXT:
            self._move(body, has_blocks=request.dialect == "messages")
        elif self.cause == "whitespace_drift":
            text = _get(body, self.path)
            if isinstance(text, str) and text.split() == self.before.split():
                _set(body, self.path, self.before)
        elif self.cause == "unstable_few_shots":
            _sort_examples(body, self.members)
        elif self.cause in MARKERS:
            _mark(body, request, self.boundary)
        else:
            _CHANGES[self.cause](body, request)
        return body

    def _move(self, body: Body, *, has_blocks: bool) -> None:
        text = _get(body, self.path)
        if not isinstance(text, str) or len(text) < len(self.before) + len(self.after):
            return
        if not text.startswith(self.before) or not text.endswith(self.after):
            return
        moved = text[len(self.before) : len(text) - len(self.after)]
        if moved and _append(body, moved, has_blocks=has_blocks):
            _set(body, self.path, self.before + self.after)


def repair_for(cause: Cause, path: Path, old: str, new: str) -> Repair | None:
    """The repair of a cause at a place; None where nothing of this kind can be done for the sender."""
    if cause in _SYSTEM_TEXT:
        start, end = difference(old, new)
        return Repair(cause, path, new[:start], new[end:]) if path[0] != "tools" else None
    if cause == "whitespace_drift":
        return Repair(cause, path, old)
    return Repair(cause) if cause in _CHANGES or cause in (*MARKERS, "unstable_few_shots") else None


def _get(body: object, path: Path) -> object:
    for step in path:
        try:
            body = body[step]  # type: ignore[index]  # what is not there is caught
        except (KeyError, IndexError, TypeError):
            return None
    return body


def _set(body: object, path: Path, value: object) -> None:
    holder = _get(body, path[:-1])
    holder[path[-1]] = value  # type: ignore[index]  # `_get` has just found it


def _append(body: Body, text: str, *, has_blocks: bool) -> bool:
    """Put text at the end of the last message, behind any marker: as a block of its own where there are blocks."""
    items = body.get("messages", body.get("input"))
    if isinstance(items, str):
        body["input"] = f"{items}\n{text}"
        return True
    for item in reversed(items if isinstance(items, list) else []):
        if not isinstance(item, dict) or item.get("role") != "user":
            continue
        content = item.get("content")
        if isinstance(content, str) and not has_blocks:
            item["content"] = f"{content}\n{text}"
            return True
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not blocks:
            continue
        if has_blocks and "cache_control" in body and isinstance(blocks[-1], dict):
            # The automatic marker would stand behind what changes; on the block before, the next turn finds it.
            blocks[-1]["cache_control"] = body.pop("cache_control")
        item["content"] = [*blocks, {"type": "input_text" if "input" in body else "text", "text": text}]
        return True
    return False


def _sort_tools(body: Body, request: LoggedRequest) -> None:
    tools = body.get("tools")
    if isinstance(tools, list):
        tools.sort(key=lambda tool: json.dumps(tool, sort_keys=True))


def _sort_keys(body: Body, request: LoggedRequest) -> None:
    for name in ("tools", "system", "messages", "input"):
        if name in body:
            body[name] = _sorted(body[name])


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return compact(_sorted(json.loads(value)))
        except (ValueError, RecursionError):
            return value
    return value


def _sort_examples(body: Body, members: frozenset[str]) -> None:
    """Put the pairs of question and answer whose order changes into one order, at the place of the first of them."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    texts = [_text(message) for message in messages]
    start = next((at for at, text in enumerate(texts) if text in members), len(messages))
    end = start
    while end + 1 < len(messages) and texts[end] in members and texts[end + 1] in members:
        end += 2
    pairs = sorted(range(start, end, 2), key=lambda at: (texts[at], texts[at + 1]))
    messages[start:end] = [messages[at + offset] for at in pairs for offset in (0, 1)]


def _text(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return "".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else ""


def _mark(body: Body, request: LoggedRequest, boundary: int) -> None:
    """Markers where they find and are found: the end of what all share, the last two parts, and one within reach."""
    ttl = max((part.marker or "" for part in request.parts), default="")
    ttl = max(ttl, request.automatic or "", key=lambda text: text == "1h")
    _unmark(body)
    last = len(request.parts) - 1
    wanted = {last, last - 1, last - _EVERY, min(boundary, last + 1) - 1}
    for index in sorted(index for index in wanted if index >= 0):
        _mark_part(body, request.parts[index].path, {"type": "ephemeral", **({"ttl": "1h"} if ttl == "1h" else {})})


def _unmark(value: object) -> None:
    if isinstance(value, dict):
        value.pop("cache_control", None)
        for item in value.values():
            _unmark(item)
    elif isinstance(value, list):
        for item in value:
            _unmark(item)


def _mark_part(body: Body, path: Path, control: dict[str, str]) -> None:
    target = _get(body, path)
    if isinstance(target, str) and path[-1] in ("text", "content", "system"):
        holder = _get(body, path[:-1]) if path[-1] == "text" or _is_block(body, path) else None
        if isinstance(holder, dict):
            holder["cache_control"] = control
        else:
            _set(body, path, [{"type": "text", "text": target, "cache_control": control}])
        return
    holder = _get(body, path[:-1]) if path[-1] in ("input", "content") else target
    if isinstance(holder, dict):
        holder["cache_control"] = control


def _is_block(body: Body, path: Path) -> bool:
    holder = _get(body, path[:-1])
    return isinstance(holder, dict) and holder.get("type") == "tool_result"


def _live_longer(body: Body, request: LoggedRequest) -> None:
    _set_lifetime(body)


def _set_lifetime(value: object) -> None:
    if isinstance(value, dict):
        control = value.get("cache_control")
        if isinstance(control, dict):
            control["ttl"] = "1h"
        for item in value.values():
            _set_lifetime(item)
    elif isinstance(value, list):
        for item in value:
            _set_lifetime(item)


_CHANGES: dict[Cause, Callable[[Body, LoggedRequest], None]] = {
    "tools_reordered": _sort_tools,
    "keys_reordered": _sort_keys,
    "ttl_passed": _live_longer,
}
