"""`foreword lint` from the command line."""

import json
import random
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.lint.faults import PLANTS, clean_log


@pytest.fixture
def log(tmp_path: Path) -> str:
    records = clean_log(conversations=3, turns=3)
    PLANTS["changing_id"].plant(records, random.Random(1))
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_a_report_for_people(run: Run, log: str) -> None:
    ran = run("lint", log, "--price", "3", "--prefill-rate", "400")

    assert (ran.code, ran.err) == (0, "")
    for words in ("9 requests", "exact", "anthropic", "changing_id at system[0].text, 8 characters in", "repairs save"):
        assert words in ran.out
    assert "req-" not in ran.out
    assert "req-" in run("lint", log, "--show-text").out


def test_a_clean_log_says_so(run: Run, log: str, tmp_path: Path) -> None:
    mended = tmp_path / "mended.jsonl"
    assert run("lint", log, "--write-repaired", str(mended), "--quiet").code == 0

    ran = run("lint", str(mended), "--min-hit-rate", "0.8")

    assert ran.code == 0
    assert "nothing is lost" in ran.out


def test_json_is_one_line(run: Run, log: str) -> None:
    ran = run("lint", log, "--json", "--no-repair")

    assert len(ran.out.splitlines()) == 1
    findings = ran.json["findings"]
    assert isinstance(findings, list)
    assert [(finding["cause"], finding["count"]) for finding in findings] == [("changing_id", 8)]


def test_the_exit_code_is_for_ci(run: Run, log: str) -> None:
    assert run("lint", log, "--min-hit-rate", "0.9").code == 1
    assert run("lint", log, "--min-hit-rate", "0.01").code == 0


def test_tokens_of_a_model(run: Run, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": "Hello there, keeper of the light"}]},
        {"input": "Hello"},
        {"prompt": "Hello"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *lines]))

    ran = run("lint", str(path), "--model", tiny, "--json", "--no-repair")

    rules = ran.json["rules"]
    assert isinstance(rules, list)
    exact = rules[0]
    assert exact["read"] == exact["tokens"] // 2 - 3  # the last token of each is computed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("nowhere.jsonl",), "nowhere.jsonl: no such file"),
        (("LOG", "--min-hit-rate", "2"), "min_hit_rate: expected a share from 0 to 1"),
        (("LOG", "--price", "-1"), "price: expected a positive number"),
        (("LOG", "--prefill-rate", "0"), "prefill_rate: expected a positive number"),
        (("LOG", "--write-repaired", "/no/where"), "write_repaired: /no/where: no such file"),
        (("LOG", "--model", "nowhere.gguf"), "nowhere.gguf"),
    ],
)
def test_refusals_are_one_line(run: Run, log: str, argv: tuple[str, ...], message: str) -> None:
    ran = run("lint", *(log if word == "LOG" else word for word in argv))

    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
