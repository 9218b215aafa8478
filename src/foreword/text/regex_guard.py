"""Refuses patterns of a model file that could take more than polynomial time.

The engine behind `tokenizers` backtracks. A pattern passes if an unbounded quantifier stands only on something that
matches in one way, and at most two stand in a row of one alternative; every published pre-tokeniser known to us does.
"""

import re
from collections.abc import Iterator

MAX_PATTERN_CHARS = 4096
MAX_REPEAT = 1024
MAX_DEPTH = 16
MAX_UNBOUNDED = 2  # in one alternative: `[A]*[b]+`

_LEXEME = re.compile(
    r"""
    (?P<escape>\\[pP]\{[^{}]*\}|\\x\{[0-9A-Fa-f]+\}|\\.)
  | (?P<open>\((?:\?(?:[imsx-]*:|<?[=!]|[imsx-]+\)))?)
  | (?P<close>\))
  | (?P<either>\|)
  | (?P<repeat>[*+?][+?]?|\{\d*(?:,\d*)?\}\??)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class _Level:
    """One open group: what its alternatives hold so far."""

    def __init__(self) -> None:
        self.unbounded = 0  # unbounded quantifiers of the alternative being read
        self.most_unbounded = 0  # the most of any alternative
        self.varies = False  # matches in more than one way or length

    def add(self, unbounded: int) -> None:
        self.unbounded += unbounded
        self.most_unbounded = max(self.most_unbounded, self.unbounded)


def pattern_fault(pattern: str) -> str | None:
    """What is wrong with a pattern, or None."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"pattern of {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are accepted"
    levels = [_Level()]
    last_group: _Level | None = None  # the group that closed just before, if one did
    last_kind = ""
    for kind, text in _lexemes(pattern):
        if kind == last_kind == "repeat":
            return "a repeat of a repeat"
        closed = levels.pop() if kind == "close" else None
        if not levels:
            return "unbalanced parentheses"
        fault = _fault_here(kind, text, levels[-1], last_group)
        if fault or len(levels) > MAX_DEPTH:
            return fault or f"groups nested deeper than {MAX_DEPTH}"
        if kind == "open":
            levels.append(_Level())
        elif closed is not None:
            levels[-1].add(closed.most_unbounded)
            levels[-1].varies |= closed.varies
        last_group, last_kind = closed, kind
    if len(levels) > 1:
        return "unbalanced parentheses"
    if levels[0].most_unbounded > MAX_UNBOUNDED:
        return f"more than {MAX_UNBOUNDED} unbounded quantifiers in one alternative"
    return None


def _fault_here(kind: str, text: str, level: _Level, last_group: _Level | None) -> str | None:
    """Take in one lexeme other than a parenthesis; what is wrong with it, or None."""
    if kind == "open" and text.startswith("(?") and text.endswith(")"):
        return "inline flags"
    if kind == "escape" and text[1] in "123456789gkKG":
        return f"back-reference or control {text!r}"
    if kind == "repeat":
        return _repeat_fault(text, level, last_group)
    if kind == "either":
        level.unbounded, level.varies = 0, True
    return None


def _repeat_fault(text: str, level: _Level, group: _Level | None) -> str | None:
    bounds = [int(number) for number in re.findall(r"\d+", text)]
    if any(number > MAX_REPEAT for number in bounds):
        return f"repeat {text} above {MAX_REPEAT}"
    is_unbounded = text[0] in "*+" or text.rstrip("?").endswith(",}")
    is_exact = text[0] == "{" and "," not in text
    if group is not None and group.varies and text[0] != "?":
        return "a repeated group that can match in more than one way"
    level.add(int(is_unbounded))
    level.varies |= not is_exact
    return None


def _lexemes(pattern: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(pattern):
        if pattern[position] == "[":
            stop = _class_end(pattern, position)
            yield "class", pattern[position:stop]
        else:
            match = _LEXEME.match(pattern, position)
            if match is None or match.lastgroup is None:  # a lone backslash at the end
                yield "other", pattern[position:]
                return
            stop = match.end()
            yield match.lastgroup, match.group()
        position = stop


def _class_end(pattern: str, start: int) -> int:
    """Index after a character class, with classes nested in it."""
    depth, position = 0, start
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
        elif character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return len(pattern)
