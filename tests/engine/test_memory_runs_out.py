"""Memory that runs out (R-12): whoever asked is told, and the engine goes on with nothing held and nothing wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.profile import DEEP


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="what fails first differs from run to run")
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS and /proc")
def test_requests_fail_one_by_one_and_the_engine_goes_on(tmp_path: Path) -> None:
    every = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "32768"}  # what is large is asked of the system anew
    argv = [sys.executable, "-m", "tests.engine.starved", str(tmp_path)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=250, env=os.environ | every)

    assert ran.returncode == 0, ran.stderr[-2000:]
    attempts = json.loads(ran.stdout)
    expected = attempts[-1]  # with all the memory there is
    assert all(isinstance(answer, list) for answer in expected)
    for answers in attempts:
        for answer, right in zip(answers, expected, strict=True):
            assert answer == right or answer in ("UnavailableError", "MemoryError")
    assert any("UnavailableError" in answers for answers in attempts)
    assert attempts[-2] == expected
