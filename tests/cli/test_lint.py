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


def test_a_log_may_be_piped_in(run: Run, log: str) -> None:
    piped = run("lint", "-", "--json", stdin=Path(log).read_text())

    assert piped.json == run("lint", log, "--json").json


def test_json_has_money_when_there_is_a_price(run: Run, log: str) -> None:
    found = run("lint", log, "--json", "--price", "3").json

    rules = found["rules"]
    assert isinstance(rules, list)
    assert found["price"] == 3
    assert all(row["money"] == pytest.approx(row["cost"] * 3e-6, abs=1e-6) for row in rules)


def test_the_exit_code_is_for_ci(run: Run, log: str) -> None:
    ran = run("lint", log, "--min-hit-rate", "0.9")
    assert ran.code == 1
    assert "at least 90.0% asked for" in ran.err
    assert run("lint", log, "--min-hit-rate", "0.01").code == 0


_SYSTEM, _USER = "Be brief, and kind to readers.", "Hello there, keeper of the light"


@pytest.mark.parametrize(
    ("body", "num_tokens"),
    [
        ({"prompt": "Hello"}, 5),
        ({"messages": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}]}, None),
        ({"system": _SYSTEM, "messages": [{"role": "user", "content": [{"type": "text", "text": _USER}]}]}, None),
        ({"instructions": _SYSTEM, "input": _USER}, None),
        (
            {
                "instructions": _SYSTEM,
                "input": [{"role": "user", "content": [{"type": "input_text", "text": _USER}]}],
            },
            None,
        ),
    ],
)
def test_tokens_of_a_model_are_those_of_its_template_in_every_dialect(
    body: dict[str, object], num_tokens: int | None, run: Run, tiny: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(2 * (json.dumps(body) + "\n"))

    ran = run("lint", str(path), "--model", tiny, "--json", "--no-repair")

    rules = ran.json["rules"]
    assert isinstance(rules, list)
    # A token a byte, but for five special ones and the line end behind each of two messages.
    chat = len(_SYSTEM) + len(_USER) + len("system\n\nuser\n\nassistant\n") + 5
    expected = num_tokens or chat
    assert (rules[0]["tokens"], rules[0]["read"]) == (2 * expected, expected - 1)  # the last token is computed


def test_what_only_the_server_renders_is_counted_by_its_parts(run: Run, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    result = {"type": "tool_result", "tool_use_id": "1", "content": "seven ships"}
    path.write_text(json.dumps({"system": _SYSTEM, "messages": [{"role": "user", "content": [result]}]}) + "\n")

    assert run("lint", str(path), "--model", tiny, "--quiet").code == 0


def test_an_empty_log_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n")

    ran = run("lint", str(path))

    assert (ran.code, ran.err) == (2, f"foreword: {path}: holds no request\n")


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
