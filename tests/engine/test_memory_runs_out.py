"""Memory that runs out (R-12): whoever asked is told, and the engine goes on with nothing held and nothing wrong.

Whatever fails, the process doesn't end by a signal: of one that does, the trace of every thread is in the failure.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.profile import DEEP

LARGE = 16 << 10  # bytes: arrays, not the interpreter's own bookkeeping
ERRORS = {"UnavailableError", "MemoryError"}
SOURCE = Path(__file__).with_name("failing_malloc.c")


def run(*argv: object, **env: str) -> Any:
    """What the program in `starved.py` prints; it must end by itself."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.engine.starved", *map(str, argv)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250, env=os.environ | env)

    assert ran.returncode == 0, ran.stderr[-6000:]
    return json.loads(ran.stdout)


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="what fails first differs from run to run")
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS and /proc")
def test_requests_fail_one_by_one_and_the_engine_goes_on(tmp_path: Path) -> None:
    # What is large is asked of the system anew.
    attempts = run(tmp_path, MALLOC_ARENA_MAX="1", MALLOC_MMAP_THRESHOLD_="32768")

    expected = attempts[-1]  # with all the memory there is
    assert all(isinstance(answer, list) for answer in expected)
    for answers in attempts:
        for answer, right in zip(answers, expected, strict=True):
            assert answer == right or answer in ERRORS
    assert any("UnavailableError" in answers for answers in attempts)
    assert attempts[-2] == expected


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or shutil.which("cc") is None, reason="needs glibc and a compiler"
)
@pytest.mark.parametrize(("least", "seed"), [(LARGE, 0), *([(1, 1), (1, 2), (256, 3), (LARGE, 4)] if DEEP else [])])
def test_any_request_for_memory_may_fail(tmp_path: Path, least: int, seed: int) -> None:
    """Where it is bookkeeping that fails, the engine may be lost; then everybody is told, and nobody is told wrong."""
    library = tmp_path / "failing.so"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", SOURCE, "-o", library], check=True)

    told = run(tmp_path, least, seed, LD_PRELOAD=str(library))

    expected, *attempts = told["attempts"]
    assert all(isinstance(answer, list) for answer in expected)
    errors = ERRORS | (set() if least == LARGE else {"StepFailedError"})
    for answers in attempts:
        for answer, right in zip(answers, expected, strict=True):
            assert answer == right or answer in errors
    assert told["num_failed"] > 0
    assert any("UnavailableError" in answers for answers in attempts) or not told["is_alive"]
    assert told["is_alive"] or least < LARGE
