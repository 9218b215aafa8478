"""What documents say about the code: generated pages are fresh, options are those of the help, named tests exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from foreword.cli.main import make_app

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
    assert len(make_app().registered_commands) == len(COMMANDS) > 4


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_names_every_option_that_help_names(command: str) -> None:
    shown = run("-m", "foreword", command, "--help", COLUMNS="200", TERM="dumb", NO_COLOR="1")
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b", shown.stdout))

    documented = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b", PAGE))

    assert shown.returncode == 0
    assert "--help" in options
    assert options <= documented


DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))


@pytest.mark.parametrize("page", DESIGN, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    path, missing = "", []
    for found in re.finditer(r"([\w/]+/test_\w+\.py)|::(\w+)", page.read_text()):
        if found[1]:
            path = found[1].removeprefix("tests/")
            named = (ROOT / "tests" / path).is_file()
        else:
            source = (ROOT / "tests" / path).read_text()
            named = re.search(rf"^(def|class) {found[2]}\b", source, re.MULTILINE) is not None
        missing += [] if named else [f"{path}{found[0]}"]

    assert missing == []
