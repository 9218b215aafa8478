"""Calls told of while they are being written, where a grammar makes certain that they will be calls."""

import re
from collections.abc import Collection

from msgspec import Struct

from foreword.text.json_scanner import SPACE

MAX_HEAD = 256
_HEAD = re.compile(r'[\s\[,]*\{"name": "([A-Za-z0-9_-]+)", "(?:arguments|parameters)": \{')


class ToolCallDelta(Struct, frozen=True):
    """A part of the call with this number: the name comes with the first part, and only with it."""

    index: int
    name: str | None
    arguments: str

    def is_continued_by(self, following: "ToolCallDelta") -> bool:
        """True when both are arguments of one call."""
        return self.name is None and following.name is None and self.index == following.index


class EarlyCalls:
    """Reads one body, an object or a list of them, as `foreword.text.tool_grammar` has it spelled.

    What is spelled otherwise isn't certain, and nothing more is told.
    """

    def __init__(self, names: Collection[str], num_before: int) -> None:
        self._names = names
        self._first = self.num_complete = num_before
        self._head: str | None = ""  # what was read of a call before its arguments; None once there is nothing to tell
        self._outside: int | None = None  # while in arguments: depth of what holds them
        self._awaits_end = False  # of a call's object, behind its arguments

    @property
    def num_begun(self) -> int:
        """Calls told of, and those before."""
        return self.num_complete + (self._outside is not None or self._awaits_end)

    @property
    def has_told(self) -> bool:
        """True once a call has begun."""
        return self.num_begun > self._first

    def take(self, character: str, depth: int) -> list[ToolCallDelta]:
        """Read one more character, with which so many objects and lists are open; what it tells."""
        if self._outside is not None:
            if depth == self._outside:
                self._outside, self._awaits_end = None, True
            return [ToolCallDelta(self.num_complete, None, character)]
        if self._awaits_end:
            if character not in SPACE:
                self._awaits_end = False
                self.num_complete += 1
            return []
        if self._head is None:
            return []
        self._head += character
        if character != "{":
            if len(self._head) > MAX_HEAD:
                self._head = None
            return []
        head = _HEAD.fullmatch(self._head)
        if head is None or head[1] not in self._names:
            return []
        self._head, self._outside = "", depth - 1
        return [ToolCallDelta(self.num_complete, head[1], ""), ToolCallDelta(self.num_complete, None, character)]
