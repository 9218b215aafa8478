"""The chat as a person meets it: on a terminal."""

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.alone

_PATIENCE_S = 120  # a loaded machine takes its time; a broken chat never answers


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *argv: str) -> None:
        self._ahead = b""  # shown already, not yet asked for
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # who runs the tests in the background ignores it
            os.execv(sys.executable, [sys.executable, "-m", "foreword", *argv])

    def read_until(self, text: str) -> str:
        """What it shows up to and with `text`; fails when that does not come."""
        while text.encode() not in self._ahead:
            ready, _, _ = select.select([self._fd], [], [], _PATIENCE_S)
            assert ready, f"{text!r} did not come after {self._ahead!r}"
            self._ahead += os.read(self._fd, 65536)
        end = self._ahead.index(text.encode()) + len(text.encode())
        shown, self._ahead = self._ahead[:end], self._ahead[end:]
        return shown.decode(errors="replace")

    def type_until(self, keys: str, text: str) -> None:
        """Press keys, and then the return key again and again, until it shows `text`."""
        deadline = time.monotonic() + _PATIENCE_S
        while text.encode() not in self._ahead:
            assert time.monotonic() < deadline, f"{text!r} did not come after {self._ahead!r}"
            self.type(keys)
            keys = "\n"
            while select.select([self._fd], [], [], 2.0)[0] and text.encode() not in self._ahead:
                self._ahead += os.read(self._fd, 65536)
        self.read_until(text)

    def wait_for_more(self) -> None:
        """Wait until it shows anything that was not asked for yet."""
        if not self._ahead:
            ready, _, _ = select.select([self._fd], [], [], _PATIENCE_S)
            assert ready, "nothing more came"

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def exit_code(self) -> int:
        """Wait for its end."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """Hang up; a program still there ends by it."""
        os.close(self._fd)


@pytest.fixture
def chat(tiny: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A chat whose answers take long: everything is computed again at each token."""
    monkeypatch.setenv("NO_COLOR", "1")
    slow = ("--kv-cache", "off", "--backend", "reference", "--max-tokens", "400", "--ignore-eos")
    terminal = Terminal("chat", "--model", tiny, *slow)
    terminal.read_until("> ")
    yield terminal
    terminal.close()


def test_ctrl_c_stops_the_answer_and_not_the_chat(chat: Terminal) -> None:
    chat.type("hello\n")
    chat.read_until("hello\r\n")  # the terminal's own echo, before the program has seen a key
    chat.wait_for_more()
    chat.type("\x03")
    stopped = chat.read_until("> ")
    chat.type("/stats\n")
    stats = chat.read_until("num_running")
    chat.read_until("> ")
    chat.type("\x04")

    assert "stopped" in stopped
    assert "num_steps" in stats
    assert chat.exit_code() == 0


def test_ctrl_c_at_the_prompt_says_how_to_leave(chat: Terminal) -> None:
    # Python notices a signal that comes right before it waits for a key only with a later line, so there are more.
    chat.type_until("\x03\n", "Ctrl-D or /quit to leave")
    chat.read_until("> ")
    chat.type("/quit\n")

    assert chat.exit_code() == 0


def test_a_mistake_does_not_end_the_chat(chat: Terminal) -> None:
    chat.type("/dance\n")
    chat.read_until("no command '/dance'")
    chat.read_until("> ")
    chat.type("x" * 600 + "\n")
    chat.read_until("max_model_len")
    chat.read_until("> ")
    chat.type("\x04")

    assert chat.exit_code() == 0
