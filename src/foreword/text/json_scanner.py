"""Where a JSON object or list ends, character by character."""

from enum import Enum

MAX_DEPTH = 64
SPACE = " \t\r\n"
_OUTSIDE_STRINGS = frozenset(SPACE + ",:+-.0123456789Eaeflnrstu")  # white space, separators, numbers, true false null


class Scan(Enum):
    """What one more character makes of what was read."""

    MORE = 1
    COMPLETE = 2
    BROKEN = 3


class JsonScanner:
    """Finds the end of a JSON object or list; what can't be JSON at all is seen at the first such character."""

    def __init__(self) -> None:
        self.depth = 0  # objects and lists that are open
        self._is_in_string = False
        self._is_escaped = False

    def take(self, character: str) -> Scan:
        """Read one more character; not to be used after an end."""
        if self._is_in_string:
            return self._take_in_string(character)
        if character in "{[":
            self.depth += 1
            return Scan.MORE if self.depth <= MAX_DEPTH else Scan.BROKEN
        if self.depth == 0:
            return Scan.MORE if character in SPACE else Scan.BROKEN
        if character in "}]":
            self.depth -= 1
            return Scan.MORE if self.depth else Scan.COMPLETE
        if character == '"':
            self._is_in_string = True
            return Scan.MORE
        return Scan.MORE if character in _OUTSIDE_STRINGS else Scan.BROKEN

    def _take_in_string(self, character: str) -> Scan:
        if character < " ":
            return Scan.BROKEN
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_in_string = False
        return Scan.MORE
