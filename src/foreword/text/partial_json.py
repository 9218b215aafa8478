"""A JSON object that was cut off, brought to an end."""

import re

_SCALAR = re.compile(r"\s*(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)\s*")


def completed_object(text: str) -> str:
    """The longest beginning of a cut object that can be closed, closed; a whole one as it is.

    A string or name that was under way is left out with the member it belongs to; a number counts with the digits that
    are there, as clients that read a stream count it. `text` is the beginning of well-formed JSON, from its `{`.
    """
    closers: list[str] = []
    cut = behind = 0  # what can be kept ends at `cut`; `behind` the last sign of structure
    is_in_string = is_escaped = is_value = False
    for at, character in enumerate(text):
        if is_in_string:
            if is_escaped or character == "\\":
                is_escaped = not is_escaped
            elif character == '"':
                is_in_string = False
                cut = at + 1 if is_value or closers[-1] == "]" else cut
            continue
        if character == '"':
            is_in_string = True
        elif character in "{[":
            closers.append("}" if character == "{" else "]")
            cut, is_value = at + 1, False
        elif character in "}]":
            closers.pop()
            cut = at + 1
        elif character == ",":
            cut, is_value = at, False
        elif character == ":":
            is_value = True
        behind = at + 1 if character in "{[}],:" else behind
    if closers and not is_in_string and _SCALAR.fullmatch(text, behind):
        cut = len(text)
    return text if text and not closers else text[:cut] + "".join(reversed(closers)) or "{}"
