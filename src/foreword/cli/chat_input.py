"""Messages from a keyboard or a pipe: one line each, or several between triple quotes."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from foreword.cli.console import remark

_FENCE = '"""'
_PROMPT = "\x01\x1b[1;32m\x02>\x01\x1b[0m\x02 "  # \x01 and \x02 tell readline what takes no room on the line
_PLAIN_PROMPT = "> "
_MORE = ". "


class MessageReader:
    """Iterates over messages until the input ends.

    A line that ends with a backslash goes on in the next one; text between two lines of triple quotes is one message.
    Empty messages are skipped.
    """

    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive
        self._prompt = _PLAIN_PROMPT if "NO_COLOR" in os.environ else _PROMPT
        if interactive:
            with suppress(ImportError):
                import readline  # noqa: F401  # importing it gives input() history and editing

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                message = self._message()
            except EOFError:
                if self._interactive:
                    print()
                return
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                print()
                remark("Ctrl-D or /quit to leave")
                continue
            if message.strip():
                yield message

    def _message(self) -> str:
        line = self._line(self._prompt)
        if line.lstrip().startswith(_FENCE):
            return self._fenced(line.lstrip().removeprefix(_FENCE))
        lines = []
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = self._line(_MORE)
        return "\n".join([*lines, line])

    def _fenced(self, line: str) -> str:
        lines = []
        while not line.rstrip().endswith(_FENCE):
            lines.append(line)
            line = self._line(_MORE)
        lines.append(line.rstrip().removesuffix(_FENCE))
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        if self._interactive:
            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")
