"""Finds tool calls in an answer that arrives in pieces.

A call is known when its JSON is complete, names a given tool and holds an object of arguments that every client can
read; until then it is held back, for a call that turns out to be malformed is text like any other, to the letter. The
text is read one character at a time, so what comes out doesn't depend on how it was cut into pieces.

Where the answer is held to a grammar (`is_held`), a call is certain once its name and the beginning of its arguments
are there: from then on they come as they are written, and a call that is cut off stays one, with what there is of it.
A grammar allows what strict clients refuse, a number beyond a double: there the call is cut off, and the answer over.

White space before a call is dropped, and so is what follows one unless more text comes: in it a template writes what
it likes when the conversation is rendered again.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Any

from msgspec.structs import replace

from foreword.text.early_calls import EarlyCalls, ToolCallDelta
from foreword.text.json_scanner import SPACE, JsonScanner, Scan
from foreword.text.stop import StopChecker
from foreword.text.tool_formats import ToolFormat
from foreword.text.tools import ToolCall

ToolEvent = str | ToolCallDelta
"""Text, or a part of a call."""

_DECODER = json.JSONDecoder()  # of what `JsonScanner` let through


class ToolCallParser:
    """Reads one answer. After `max_calls` calls it `is_done`, and all that follows is dropped.

    Cost: O(1) for each character, and O(its length) once for each call.
    """

    def __init__(
        self, form: ToolFormat, names: Collection[str], *, max_calls: int | None = None, is_held: bool = False
    ) -> None:
        self._form = form
        self._names = names
        self._is_held = is_held
        self._early: EarlyCalls | None = None  # of the body under way, where it is held to a grammar
        self._max_calls = max_calls
        self._state = _State.START if form.starts_bare else _State.TEXT
        self._opener = StopChecker([form.opener])
        self._gap: list[str] = []  # white space that may turn out to stand before a call
        self._body: list[str] = []  # what may be a call, its opener first
        self._held: list[str] = []  # what follows a call
        self._begun = ""  # the same without its white space
        self._scanner = JsonScanner()
        self._num_calls = 0
        self._is_behind_call = False
        self._events: list[ToolEvent] = []

    @property
    def num_calls(self) -> int:
        """Calls found so far, the one under way included."""
        return self._num_calls if self._early is None else self._early.num_begun

    @property
    def is_done(self) -> bool:
        """True when no more calls are wanted, and the last one is closed."""
        has_end = self._form.closer is not None and self._state in (_State.BODY, _State.BEHIND)
        return self.is_cut or (self._is_full and not has_end)

    @property
    def is_cut(self) -> bool:
        """True when a call was cut off, at what no client could read."""
        return self._state is _State.CUT

    @property
    def _is_full(self) -> bool:
        return self._max_calls is not None and self._num_calls >= self._max_calls

    def push(self, text: str) -> list[ToolEvent]:
        """Take the next piece of the answer; returns what is certain now."""
        for character in text:
            if self.is_done:
                break
            self._take(character)
        return self._taken()

    def finish(self) -> list[ToolEvent]:
        """The answer is over: what was held back is text, but for what is left of a call's end."""
        if self._is_full:
            return self._taken()
        if self._state is _State.BODY:
            self._give_up()
        elif self._state is _State.TEXT:
            self._say(self._opener.finish())
        if self._gap and not self._is_behind_call:
            self._events.append("".join(self._gap))
        self._gap, self._held = [], []
        return self._taken()

    def _taken(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return _merged(events)

    def _take(self, character: str) -> None:
        match self._state:
            case _State.START:
                self._take_first(character)
            case _State.TEXT:
                ready, found = self._opener.push(character)
                self._say(ready)
                if found is not None:
                    self._open(self._form.opener)
            case _State.BODY:
                self._take_body(character)
            case _State.BEHIND:
                self._take_behind(character)

    def _take_first(self, character: str) -> None:
        if character in SPACE:
            self._gap.append(character)
            return
        self._state = _State.TEXT
        if character == "{":
            self._open("")
        self._take(character)

    def _open(self, opener: str) -> None:
        self._state = _State.BODY
        self._body = [opener]
        self._scanner = JsonScanner()
        is_certain = self._is_held and not (self._form.starts_bare and opener)
        self._early = EarlyCalls(self._names, self._num_calls) if is_certain else None
        self._opener = StopChecker([self._form.opener])

    def _take_body(self, character: str) -> None:
        found = self._scanner.take(character)
        if found is Scan.BROKEN and self._has_told:
            self._num_calls, self._early, self._state = self.num_calls, None, _State.CUT
            return
        if found is Scan.BROKEN:
            self._give_up()
            self._take(character)
            return
        self._body.append(character)
        if self._early is not None:
            self._take_early(self._early, character)
        if found is Scan.COMPLETE:
            calls = [] if self._has_told else _calls_in("".join(self._body[1:]), self._names)
            if calls is None:
                self._give_up()
            else:
                self._call(calls)

    def _take_early(self, early: EarlyCalls, character: str) -> None:
        deltas = early.take(character, self._scanner.depth)
        self._num_calls = early.num_complete
        if deltas:
            self._gap, self._is_behind_call = [], True
            self._events += deltas

    @property
    def _has_told(self) -> bool:
        return self._early is not None and self._early.has_told

    def _give_up(self) -> None:
        """What was read is no call after all; of one that was told of there is no more."""
        self._state = _State.TEXT
        if self._has_told:
            self._num_calls, self._early = self.num_calls, None
        else:
            self._say("".join(self._body))

    def _call(self, calls: list[ToolCall]) -> None:
        self._state, self._early = _State.BEHIND, None
        self._gap, self._held, self._begun = [], [], ""
        self._is_behind_call = True
        for call in calls:
            if not self._is_full:
                self._events.append(ToolCallDelta(self._num_calls, call.name, ""))
                self._events.append(ToolCallDelta(self._num_calls, None, call.arguments))
                self._num_calls += 1

    def _take_behind(self, character: str) -> None:
        """Right behind a call: white space and its closer; where calls need no opener, `;` and another one."""
        self._held.append(character)
        if character in SPACE and self._begun in ("", ";"):
            return
        self._begun += character
        closer = self._form.closer or ""
        if self._begun == closer:
            self._state, self._held = _State.TEXT, []
        elif closer.startswith(self._begun) or (self._form.starts_bare and self._begun == ";"):
            return
        elif self._form.starts_bare and self._begun in ("{", ";{"):
            self._open("".join(self._held[:-1]))
            self._take("{")
        else:
            held, self._held = self._held, []
            self._state = _State.TEXT
            for each in [] if self._is_full else held:
                self._take(each)

    def _say(self, text: str) -> None:
        said = text.rstrip(SPACE)
        if said:
            self._events.append("".join([*self._gap, said]))
            self._gap = []
            self._is_behind_call = False
        if len(said) < len(text):
            self._gap.append(text[len(said) :])


def gathered(events: Iterable[ToolEvent]) -> list[str | ToolCall]:
    """A whole answer's events as texts and calls, in order."""
    found: list[str | ToolCall] = []
    for event in _merged(events):
        if isinstance(event, str):
            found.append(event)
        elif event.name is not None:
            found.append(ToolCall(event.name, event.arguments))
        else:
            call = found[-1]
            assert isinstance(call, ToolCall)
            found[-1] = ToolCall(call.name, call.arguments + event.arguments)
    return found


def parse_tool_calls(
    text: str, form: ToolFormat, names: Collection[str], *, max_calls: int | None = None, is_held: bool = False
) -> list[str | ToolCall]:
    """A whole answer as texts and calls."""
    parser = ToolCallParser(form, names, max_calls=max_calls, is_held=is_held)
    return gathered([*parser.push(text), *parser.finish()])


class _State(Enum):
    START = 1  # nothing but white space yet, where an object here would be a call
    TEXT = 2
    BODY = 3
    BEHIND = 4
    CUT = 5


def _calls_in(body: str, names: Collection[str]) -> list[ToolCall] | None:
    """The calls of an object or a list of them, arguments to the letter; None if anything is wrong with one."""
    try:
        _DECODER.decode(body)
        start = _skip(body, 0)
        spans = _members(body, start) if body[start] == "[" else [("", None, start)]
        calls = [_call_in(body, at, names) for _, _, at in spans]
    except ValueError:
        return None
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _call_in(body: str, start: int, names: Collection[str]) -> ToolCall | None:
    if body[start] != "{":
        return None
    name: object = None
    arguments: object = {}
    source = "{}"
    for key, value, at in _members(body, start):
        if key == "name":
            name = value
        elif key in ("arguments", "parameters"):
            arguments, source = value, body[at : _DECODER.raw_decode(body, at)[1]]
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    json.dumps(arguments, ensure_ascii=False).encode()  # refuses half a surrogate pair, which no client could read
    return ToolCall(name, source)


def _members(text: str, start: int) -> Iterator[tuple[str, Any, int]]:
    """Key, value and the value's place of each member of an object or list known to be well-formed."""
    is_object = text[start] == "{"
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        key = ""
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        value, end = _DECODER.raw_decode(text, at)
        yield key, value, at
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in SPACE:
        at += 1
    return at


def _merged(events: Iterable[ToolEvent]) -> list[ToolEvent]:
    """One event for each run of texts, or of one call's arguments."""
    runs: list[list[ToolEvent]] = []
    for event in events:
        if runs and _is_continued(runs[-1][-1], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [_joined(run) for run in runs]


def _is_continued(event: ToolEvent, following: ToolEvent) -> bool:
    if isinstance(event, str) or isinstance(following, str):
        return isinstance(event, str) and isinstance(following, str)
    return event.is_continued_by(following)


def _joined(run: list[ToolEvent]) -> ToolEvent:
    first, parts = run[0], [event if isinstance(event, str) else event.arguments for event in run]
    return "".join(parts) if isinstance(first, str) else replace(first, arguments="".join(parts))
