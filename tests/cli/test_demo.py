"""`foreword demo` from the command line; its claims are tested in tests/demo."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from foreword.demo.claim import Bar, Claim
from foreword.demo.demo import Stage
from foreword.demo.measured import Asked
from tests.cli.conftest import Run

GOOD = Claim("one", "1", "1", True, [Bar("x", 1, "1")])
BAD = Claim("two [bold]", "2", "3", False)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
    """What the demo finds."""
    found: list[Claim] = [GOOD]

    def run_demo(model: Path, stage: Stage, **options: object) -> Iterator[Claim]:
        stage.begin("something")
        stage.told(Asked(100, 90, 15, 6, 0.5, 80.0))
        yield from found

    monkeypatch.setattr("foreword.demo.demo.run_demo", run_demo)
    return found


def test_a_table_for_people(run: Run, tiny: str, claims: list[Claim]) -> None:
    ran = run("demo", "--model", tiny)

    assert ran.code == 0
    for words in ("› something", "90 from the cache", "10 computed", "✓", "1 of 1 claims hold"):
        assert words in ran.out


def test_a_claim_that_is_off_fails_loudly(run: Run, tiny: str, claims: list[Claim]) -> None:
    claims.append(BAD)

    ran = run("demo", "--model", tiny, "--quiet")

    assert ran.code == 1
    assert "✗" in ran.out
    assert "two [bold]" in ran.out


def test_json_and_a_page(run: Run, tiny: str, tmp_path: Path, claims: list[Claim]) -> None:
    path = tmp_path / "demo.html"

    ran = run("demo", "--model", tiny, "--json", "--html", str(path))

    assert json.loads(ran.out) == {"claims": [{"claim": "one", "expected": "1", "measured": "1", "ok": True}]}
    assert path.read_text().startswith("<!doctype html>")


def test_refusals_are_one_line(run: Run, tiny: str, claims: list[Claim]) -> None:
    for argv, message in (
        (("--model", "nowhere.gguf"), "no file or folder nowhere.gguf"),
        (("--model", tiny, "--html", "/no/x.html"), "html: /no/x.html: no such file"),
    ):
        ran = run("demo", *argv)
        assert ran.code == 2
        assert message in ran.err
        assert len(ran.err.splitlines()) == 1
