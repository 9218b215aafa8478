"""The types mypy believes are those of the built module."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_stub_of_the_native_module_is_fresh() -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    bash = shutil.which("bash")
    assert bash is not None

    checked = subprocess.run(
        [bash, str(ROOT / "scripts" / "stub"), "--check"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
