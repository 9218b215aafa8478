"""Why a request parts from the one before it: the first part that differs, and what kind of difference it is."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from foreword.lint.request import LoggedRequest, Part
from foreword.lint.rules import Loss

Cause = (
    Loss
    | Literal[
        "model_changed",
        "tools_reordered",
        "tools_changed",
        "keys_reordered",
        "whitespace_drift",
        "changing_time",
        "changing_id",
        "user_data_in_system",
        "unstable_few_shots",
        "history_rewritten",
        "history_dropped",
    ]
)

_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:\s?[ap]m)?"
    r"|\d{1,4}[/.]\d{1,2}[/.]\d{1,4}"
    rf"|(?:\w+day,? )?(?:\d{{1,2}}(?:st|nd|rd|th)? )?\b(?:{_MONTHS})[a-z]*"  # a month and what is written around it
    r"\.? ?\d{0,2}(?:st|nd|rd|th)?,? ?(?:\d{4})?"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
    r"|\b1[0-9]{9}(?:\.\d+)?(?:\d{3})?\b",
    re.IGNORECASE,
)
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"
    r"|\b(?:req|id|session|sess|trace|user|run|call|msg|chatcmpl|conv|thread|nonce|build|ticket|order)[-_:#]\w{4,}"
    r"|\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{12,}\b"
    r"|#?\b\d{5,}\b",
    re.IGNORECASE,
)
_REACH = 80  # characters around a difference in which a time or an id may lie
_ALIKE = 0.5  # share of a system text that must be common, for two to be versions of one text


class Divergence(Struct, frozen=True):
    """Where two requests part and why. `span` is what differs in the part's text, from `start` to `end`."""

    cause: Cause
    index: int  # part
    start: int = 0
    end: int = 0


def find_cause(before: LoggedRequest, request: LoggedRequest, shared: int) -> Divergence | None:
    """The fault behind a divergence; None where the request merely goes on, or is about something else."""
    if before.model != request.model and _same_opening(before, request):
        return Divergence("model_changed", 0)
    if shared >= len(request.parts) or shared >= len(before.parts):
        return None
    old, new = before.parts[shared], request.parts[shared]
    if "tools" in (old.section, new.section):
        return _tool_cause(before, request, shared)
    if old.section != new.section or old.role != new.role:
        return _order_cause(before, request, shared)
    cause = _text_cause(old, new)
    start, end = difference(old.text, new.text)
    if new.section == "system":
        if cause is None and _share_in_common(old.text, new.text) >= _ALIKE:
            cause = "user_data_in_system"
        return None if cause is None else Divergence(cause, shared, start, end)
    if cause is not None and _goes_on_alike(before, request, shared):
        return Divergence(cause, shared, start, end)
    return _order_cause(before, request, shared)


def difference(old: str, new: str) -> tuple[int, int]:
    """Start and end in `new` of what differs, with ends grown to whole words."""
    limit = min(len(old), len(new))
    start = _common(old, new, limit)
    tail = _common(old[::-1], new[::-1], limit - start)
    end = len(new) - tail
    while start > 0 and not new[start - 1].isspace():
        start -= 1
    while end < len(new) and not new[end].isspace():
        end += 1
    return start, end


def lost_tokens(before: LoggedRequest, request: LoggedRequest, at: Divergence, sizes: Sequence[int]) -> int:
    """Tokens after a divergence that the earlier request had too, and that could have been read but for it."""
    if at.cause == "model_changed":
        return sum(size for part, size in zip(request.parts, sizes, strict=True) if _in(before, part))
    there = Counter(part.text for part in before.parts[at.index :])
    lost = 0
    for part, size in zip(request.parts[at.index :], sizes[at.index :], strict=True):
        if there[part.text] > 0:
            there[part.text] -= 1
            lost += size
    old, new = before.parts[at.index], request.parts[at.index]
    if at.cause in ("whitespace_drift", "keys_reordered"):
        lost += sizes[at.index]
    elif old.text != new.text and old.section == new.section:
        limit = min(len(old.text), len(new.text))
        start = _common(old.text, new.text, limit)
        tail = _common(old.text[::-1], new.text[::-1], limit - start)
        lost += sizes[at.index] * tail // max(1, len(new.text))
    return lost


def _in(before: LoggedRequest, part: Part) -> bool:
    return any(part.rendered == other.rendered for other in before.parts)


def _same_opening(before: LoggedRequest, request: LoggedRequest) -> bool:
    return bool(before.parts and request.parts) and before.parts[0].rendered == request.parts[0].rendered


def _tool_cause(before: LoggedRequest, request: LoggedRequest, shared: int) -> Divergence:
    old = [part for part in before.parts if part.section == "tools"]
    new = [part for part in request.parts if part.section == "tools"]
    sorted_old, sorted_new = sorted(map(_canonical, old)), sorted(map(_canonical, new))
    if sorted_old != sorted_new:
        cause: Cause = "tools_changed"
    elif shared < min(len(old), len(new)) and _canonical(old[shared]) == _canonical(new[shared]):
        cause = "keys_reordered"
    else:
        cause = "tools_reordered"
    return Divergence(cause, shared)


def _canonical(part: Part) -> str:
    return _sorted_json(part.text) or part.text


def _sorted_json(text: str) -> str | None:
    """The same JSON with sorted keys; None where it is none."""
    opening = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    if opening < 0:
        return None
    head, rest = text[:opening], text[opening:].rstrip(")\n ")
    try:
        return head + json.dumps(json.loads(rest), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None


def _text_cause(old: Part, new: Part) -> Cause | None:
    """What kind of difference two texts have, where it is one of form, time or identity."""
    first, second = _sorted_json(old.text), _sorted_json(new.text)
    if first is not None and first == second:
        squeezed = "".join(old.text.split()) == "".join(new.text.split())
        return "whitespace_drift" if squeezed else "keys_reordered"
    at = _common(old.text, new.text, min(len(old.text), len(new.text)))
    if _only_space_differs(old.text, new.text, at):
        return "whitespace_drift"
    if _covers(_TIME, old.text, at) and _covers(_TIME, new.text, at):
        return "changing_time"
    if _covers(_ID, old.text, at) and _covers(_ID, new.text, at):
        return "changing_id"
    return None


def _only_space_differs(old: str, new: str, at: int) -> bool:
    if old.split() == new.split():
        return True
    a, b = old[at : at + _REACH], new[at : at + _REACH]
    spaced = (a[:1].isspace() or b[:1].isspace() or (at > 0 and new[at - 1].isspace())) and a[:1] != b[:1]
    words_a, words_b = "".join(a.split()), "".join(b.split())
    length = min(len(words_a), len(words_b), _REACH // 2)
    return spaced and length >= 8 and words_a[:length] == words_b[:length]


def _covers(pattern: re.Pattern[str], text: str, at: int) -> bool:
    start = max(0, at - _REACH)
    return any(
        start + m.start() <= at <= start + m.end() for m in pattern.finditer(text[start : at + _REACH]) if m[0].strip()
    )


def _share_in_common(old: str, new: str) -> float:
    limit = min(len(old), len(new))
    start = _common(old, new, limit)
    return (start + _common(old[::-1], new[::-1], limit - start)) / max(len(old), len(new), 1)


def _goes_on_alike(before: LoggedRequest, request: LoggedRequest, at: int) -> bool:
    """True where what follows is the same in both, or where the texts are alike and something follows."""
    there = {part.rendered for part in before.parts[at + 1 :]}
    if any(part.rendered in there for part in request.parts[at + 1 :]):
        return True
    return len(request.parts) > at + 1 and _share_in_common(before.parts[at].text, request.parts[at].text) >= _ALIKE


def _order_cause(before: LoggedRequest, request: LoggedRequest, at: int) -> Divergence | None:
    """A history that was cut, shuffled or rewritten; None where another one begins."""
    old = [part.rendered for part in before.parts[at:]]
    new = [part.rendered for part in request.parts[at:]]
    if new[0] in old:
        skipped = old.index(new[0])
        run = _common(old[skipped:], new, min(len(old) - skipped, len(new)))
        if run == len(old) - skipped and not set(old[:skipped]) & set(new):
            return Divergence("history_dropped", at)
    kept = set(old) & set(new)
    if not kept:
        return None
    if (
        old[1:]
        and new[1:]
        and old[1] == new[1]
        and before.parts[at].role == request.parts[at].role
        and new[0] not in old
    ):
        return Divergence("history_rewritten", at, *difference(before.parts[at].text, request.parts[at].text))
    return Divergence("unstable_few_shots", at)


def _common(a: Sequence[object], b: Sequence[object], limit: int) -> int:
    """Equal leading items of two sequences, at most `limit`, by bisection over slices."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
