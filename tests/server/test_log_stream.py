"""A log whose reader has stopped halts nobody, and says afterwards what it left out."""

import asyncio
import fcntl
import io
import json
import logging
import os
import pty
import select
import socket
import termios
import tty
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

import pytest

from foreword.server.log_stream import UnblockedHandler
from foreword.server.logs import JsonFormatter, log, logger, set_up_logging
from tests.server.process import serving
from tests.server.wire import completion_body, send

NUM_LINES = 5000  # more than any buffer between takes
SILENCE_S = 0.3  # a terminal passes on what it was given a little later


def logger_to(stream: TextIO) -> logging.Logger:
    logger = logging.Logger("test")
    handler = UnblockedHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return logger


def log_lines(logger: logging.Logger, first: int = 0, number: int = NUM_LINES) -> None:
    for index in range(first, first + number):
        logger.info("line", extra={"fields": {"index": index, "filling": "x" * 100}})


def all_that_is_there(descriptor: int) -> bytes:
    data = b""
    while select.select([descriptor], [], [], SILENCE_S)[0]:
        data += os.read(descriptor, 1 << 20)
    return data


def check(data: bytes, first_after: int) -> None:
    """Whole lines in their order, the gaps in them told, and the line after the reader went on at the end."""
    due = 0
    for line in data.decode().splitlines():
        entry = json.loads(line)
        if entry["event"] == "log lines were left out":
            due += entry["lines"]
        else:
            assert entry["index"] == due
            due += 1
    assert due == first_after + 2


def ends_of_a_pipe() -> tuple[int, int]:
    return os.pipe()


def ends_of_a_terminal() -> tuple[int, int]:
    reader, writer = pty.openpty()
    tty.setraw(writer, termios.TCSANOW)
    return reader, writer


def ends_of_a_socket() -> tuple[int, int]:
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


@pytest.fixture(params=[ends_of_a_pipe, ends_of_a_terminal, ends_of_a_socket])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    found = request.param()
    yield found
    for end in found:
        os.close(end)


def test_lines_that_nobody_takes_are_left_out_and_counted_in_the_next_that_is(ends: tuple[int, int]) -> None:
    reader, writer = ends
    with open(writer, "w", closefd=False) as stream:
        logger = logger_to(stream)
        log_lines(logger)
        data = all_that_is_there(reader)
        assert 0 < data.count(b"\n") < NUM_LINES

        log_lines(logger, NUM_LINES, 2)

        check(data + all_that_is_there(reader), NUM_LINES)


def test_nobody_elses_writing_changes(ends: tuple[int, int]) -> None:
    _, writer = ends
    before = fcntl.fcntl(writer, fcntl.F_GETFL)
    with open(writer, "w", closefd=False) as stream:
        log_lines(logger_to(stream), 0, 1)

    assert fcntl.fcntl(writer, fcntl.F_GETFL) == before
    assert not before & os.O_NONBLOCK


def test_a_file_gets_every_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        log_lines(logger_to(stream))

    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == list(range(NUM_LINES))


@pytest.fixture
def loggers_as_before() -> Iterator[None]:
    names = "foreword", "uvicorn.error", "asyncio"
    before = {name: (logging.getLogger(name).handlers, logging.getLogger(name).level) for name in names}
    propagates = {name: logging.getLogger(name).propagate for name in names}
    yield
    for name, (handlers, level) in before.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, propagates[name]
        logger.setLevel(level)


@pytest.mark.usefixtures("loggers_as_before")
def test_a_stream_without_a_descriptor_gets_its_lines_too() -> None:
    stream = io.StringIO()
    set_up_logging(stream)
    logging.getLogger("foreword").info("here")

    assert json.loads(stream.getvalue())["event"] == "here"


@pytest.mark.usefixtures("loggers_as_before")
@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_a_line_says_the_same_with_and_without_a_record(tmp_path: Path, level: int) -> None:
    path, records = tmp_path / "log", []

    def note(record: logging.LogRecord) -> bool:
        records.append(record)
        return True

    with path.open("w") as stream:
        set_up_logging(stream)
        log("asked", level, name="a\nb", number=1, long="x" * 1000, nothing=None)
        assert not records
        logger.addFilter(note)
        try:
            log("asked", level, name="a\nb", number=1, long="x" * 1000, nothing=None)
            log("not asked for", logging.DEBUG)
        finally:
            logger.removeFilter(note)

    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert len(records) == 1
    assert [*first] == [*second]
    assert {**first, "time": ""} == {**second, "time": ""}
    form = "%Y-%m-%dT%H:%M:%S.%fZ"
    assert datetime.strptime(first["time"], form) <= datetime.strptime(second["time"], form)


@pytest.mark.usefixtures("loggers_as_before")
def test_the_event_loops_own_words_show_nothing_of_what_it_calls() -> None:
    stream = io.StringIO()
    set_up_logging(stream)

    def fail(data: str) -> None:
        raise ValueError(data)

    async def scene() -> None:
        asyncio.get_running_loop().call_soon(fail, "what a client said")
        await asyncio.sleep(0.01)

    asyncio.run(scene())

    told = json.loads(stream.getvalue())
    assert (told["logger"], told["level"], told["error"]) == ("asyncio", "error", "ValueError")
    assert told["where"][-1].endswith(" fail")
    assert "client" not in stream.getvalue()


@pytest.mark.usefixtures("loggers_as_before")
def test_a_line_that_cant_be_made_is_told_as_any_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "log").open("w") as stream:
        set_up_logging(stream)
        log("asked", what=object())

    assert "--- Logging error ---" in capsys.readouterr().err


def test_a_server_whose_log_nobody_reads_answers_on(tiny: str) -> None:
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        with serving(tiny, stderr=writer) as server:
            for _ in range(40):
                assert send(server.port, "POST", "/v1/completions", completion_body(max_tokens=1)).status == 200
        data = all_that_is_there(reader)
    finally:
        os.close(reader)
        os.close(writer)

    lines = [json.loads(line) for line in data.decode().splitlines() if line.startswith("{")]
    assert 0 < sum(line["event"] == "request" for line in lines) < 40
