"""The generated pages of the reference are fresh, and say what the command line itself says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from foreword.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()
COMMANDS = sorted(re.findall(r"^## foreword ([\w-]+)$", PAGE, re.MULTILINE))
SCRIPT = ROOT / "scripts" / "make_reference.py"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=os.environ | environment, capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_the_generated_pages_are_fresh_whatever_the_terminal() -> None:
    for columns in ("40", "200"):
        done = run(str(SCRIPT), "--check", COLUMNS=columns, TERM="dumb", NO_COLOR="1")

        assert done.returncode == 0, done.stderr


def test_every_command_has_its_section() -> None:
    assert len(app.registered_commands) == len(COMMANDS) > 4


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_names_every_option_that_help_names(command: str) -> None:
    shown = run("-m", "foreword", command, "--help", COLUMNS="200", TERM="dumb", NO_COLOR="1")
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b", shown.stdout))

    documented = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b", PAGE))

    assert shown.returncode == 0
    assert "--help" in options
    assert options <= documented
