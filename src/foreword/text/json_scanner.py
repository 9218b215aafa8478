"""Where a JSON object or list ends, character by character."""

from enum import Enum
from math import isinf

MAX_DEPTH = 64
MAX_NUMBER = 1_000
"""Characters of a number."""
SPACE = " \t\r\n"
_DIGITS = frozenset("0123456789")
_IN_NUMBERS = _DIGITS | frozenset("+-.eE")
_OUTSIDE_STRINGS = _IN_NUMBERS | frozenset(SPACE + ",:aeflnrstu")  # white space, separators, numbers, true false null
_LARGE = 300  # digits from which on a whole number may be beyond a double


class Scan(Enum):
    """What one more character makes of what was read."""

    MORE = 1
    COMPLETE = 2
    BROKEN = 3


class JsonScanner:
    """Finds the end of a JSON object or list.

    What can't be JSON at all is seen at the first such character, and so is what strict clients refuse though it is: a
    number beyond a double or of more than `MAX_NUMBER` characters, and more than `MAX_DEPTH` values in one another.
    """

    def __init__(self) -> None:
        self.depth = 0  # objects and lists that are open
        self._number = ""  # characters of the number under way
        self._is_in_string = False
        self._is_escaped = False

    def take(self, character: str) -> Scan:
        """Read one more character; not to be used after an end."""
        if self._is_in_string:
            return self._take_in_string(character)
        if character in _IN_NUMBERS and self.depth:
            self._number += character
            return Scan.BROKEN if len(self._number) > MAX_NUMBER or _is_beyond(self._number) else Scan.MORE
        self._number = ""
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


def _is_beyond(number: str) -> bool:
    """True when what there is of a number is none, or no finite double, even if an exponent could still make it one."""
    if number[-1] not in _DIGITS or (len(number) <= _LARGE and "e" not in number and "E" not in number):
        return False
    try:
        return isinf(float(number))
    except ValueError:
        return True
