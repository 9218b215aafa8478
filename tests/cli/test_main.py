import io
import os
import signal
import subprocess
import sys

import pytest

from foreword.cli.console import human_bytes, human_rate, human_s, one_line, write_text
from tests.cli.conftest import Run

COMMANDS = ("pull", "generate", "chat", "bench", "doctor")


def _start(*argv: str, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "foreword", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,
    )


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_explains_itself(run: Run, command: str, flag: str) -> None:
    ran = run(*command.split(), flag)

    assert ran.code == 0
    assert "Usage: foreword" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_speaks_json(run: Run, command: str) -> None:
    assert "--json" in run(command, "--help").out


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    ran = run()

    assert ran.code == 0
    assert all(command in ran.out for command in COMMANDS)


def test_help_loads_no_library_that_takes_long() -> None:
    heavy = ("numpy", "tokenizers", "jinja2", "gguf", "foreword.llm", "foreword._native")
    code = (
        "import sys; from foreword.cli.main import main; main(['--help']);"
        f"sys.exit(','.join(name for name in {heavy} if name in sys.modules) or 0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_command_loads_no_other_command_and_no_validator() -> None:
    unwanted = ("foreword.cli.doctor", "foreword.cli.bench", "pydantic", "gguf")
    code = (
        "import sys; from foreword.cli.main import main; code = main(['serve', '--new-key', 'x']);"
        f"sys.exit(code or ','.join(name for name in {unwanted} if name in sys.modules) or 0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_start_on_the_cpu_needs_no_format_library(tiny: str) -> None:
    code = (
        "import sys; from foreword.llm.loading import EngineOptions, load;"
        f"load({tiny!r}, EngineOptions()); sys.exit('gguf' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ctrl_c_ends_a_long_answer_with_130(tiny: str) -> None:
    process = _start("generate", "hi", "--model", tiny, "--max-tokens", "400", "--ignore-eos", "--kv-cache", "off")
    assert process.stdout is not None
    process.stdout.read(1)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_leaves_gets_no_complaint(tiny: str) -> None:
    command = f"'{sys.executable}' -m foreword generate hi --model '{tiny}' --max-tokens 300 --ignore-eos | head -c 1"
    command += "; exit ${PIPESTATUS[0]}"

    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)

    assert done.returncode == 141
    assert b"Traceback" not in done.stderr
    assert b"Broken" not in done.stderr


@pytest.mark.parametrize("full", [True, False])
def test_remarks_that_nobody_takes_cost_neither_the_answer_nor_the_exit_code(tiny: str, full: bool) -> None:
    if full:
        stderr = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, stderr = os.pipe()
        os.close(reader)
    command = [sys.executable, "-m", "foreword", "generate", "hi", "--model", tiny, "--max-tokens"]
    try:
        answered = subprocess.run([*command, "9"], stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=False)
        refused = subprocess.run([*command, "0"], stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=False)
    finally:
        os.close(stderr)

    assert answered.returncode == 0
    assert answered.stdout
    assert (refused.returncode, refused.stdout) == (2, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_for_which_the_disk_is_full_is_refused_in_one_line(tiny: str, unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        for argv in (["generate", "hi", "--model", tiny, "-q", "--max-tokens", "9"], ["plan", tiny], ["--version"]):
            done = subprocess.run(
                [sys.executable, "-m", "foreword", *argv],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
                env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            )
            assert done.returncode == 2
            assert done.stderr == "foreword: No space left on device\n"


def test_the_environment_names_model_and_threads(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWORD_MODEL", tiny)
    monkeypatch.setenv("FOREWORD_THREADS", "1")

    answer = run("generate", "hello", "--max-tokens", "2", "--json").json

    assert answer["engine"]["threads"] == 1  # type: ignore[index]


def test_a_pipe_gets_no_colours(run: Run, tiny: str) -> None:
    ran = run("generate", "hello", "--model", tiny, "--max-tokens", "2")

    assert "\x1b" not in ran.out + ran.err


def test_numbers_are_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1024, 98_400_000, 3 * 2**31)] == [
        "0 B",
        "1,023 B",
        "1.0 KiB",
        "93.8 MiB",
        "6.0 GiB",
    ]
    assert [human_s(n) for n in (0.00051, 0.0994, 0.1, 12.345, 1234.5)] == [
        "0.5 ms",
        "99.4 ms",
        "0.10 s",
        "12.35 s",
        "1,234 s",
    ]
    assert [human_rate(n) for n in (61.27, 1234.6)] == ["61.3 tok/s", "1,235 tok/s"]


def test_messages_are_folded_into_one_harmless_line() -> None:
    assert one_line("two\nlines \x1b[31m red") == "two lines �[31m red"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_model_says_cannot_drive_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, pipe = _Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        monkeypatch.setattr("sys.stdout", stream)
        write_text("one\ttwo\n\x1b]0;title\x07\x9b2J\r")

    assert terminal.getvalue() == "one\ttwo\n\ufffd]0;title\ufffd\ufffd2J\ufffd"
    assert pipe.getvalue() == "one\ttwo\n\x1b]0;title\x07\x9b2J\r"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_stream_closed_from_the_start_is_no_crash(tiny: str, closed: str) -> None:
    command = f'exec "$0" -m foreword generate hi --model "$1" --max-tokens 4 {closed}'

    done = subprocess.run(["sh", "-c", command, sys.executable, tiny], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
