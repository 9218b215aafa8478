"""Every example runs, on a tiny model; on the real one, where it is here, the demonstration gives the right answer."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.smollm2 import SMOLLM2, needs_smollm2

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_runs(
    name: str, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, tiny])

    runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    assert capsys.readouterr().out.strip()


@needs_smollm2
def test_a_question_about_the_example_document_is_answered_right(run: Run) -> None:
    question = "Who was the first keeper of the lighthouse, and for how many years did she keep the light?"

    ran = run("generate", question, "--document", str(EXAMPLES / "document.txt"), "--model", str(SMOLLM2))

    assert ran.code == 0
    assert "Margaret Finlay" in ran.out
    assert "twenty-six years" in ran.out
    assert "tok/s" in ran.err


@needs_smollm2
def test_the_quickstart_reads_the_text_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quickstart.py", str(SMOLLM2)])

    runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")

    out = capsys.readouterr().out
    assert "Joan Petrie" in out
    assert "two hours" in out
    assert "(74 of 87 prompt tokens came from the cache)" in out
