import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_waste_needs_no_model_and_paging_beats_contiguous_reservation(run: Run) -> None:
    row = run("bench", "waste", "--json").json

    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    assert (row["row"], row["model"], row["threads"]) == ("waste", "none", 0)
    assert metrics["truncated_waste_ratio"] < 0.01
    assert metrics["waste_ratio"] < 0.05 < 0.4 < metrics["contiguous_waste_ratio"]


def test_waste_reads_a_trace(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1000,48\nlater,2000,48\n")

    metrics = run("bench", "waste", "--trace", str(path), "--json").json["metrics"]

    assert isinstance(metrics, dict)
    assert (metrics["requests"], metrics["source"]) == (2, "trace.csv")


def test_quality_of_f32_weights_against_themselves_is_nothing(run: Run, tiny: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 8)

    row = run("bench", "quality", "--model", tiny, "--text", str(text), "--kv-dtype", "f32", "--json").json

    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["mean_kl"] == 0
    assert metrics["perplexity"] == metrics["perplexity_f32"] > 1


def test_quality_of_rounded_weights_is_close_but_not_nothing(run: Run, tiny: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 8)

    metrics = run("bench", "quality", "--model", tiny, "--text", str(text), "--weights", "q8", "--json").json["metrics"]

    assert isinstance(metrics, dict)
    assert 0 < metrics["mean_kl"] < 0.1
    assert metrics["perplexity"] != metrics["perplexity_f32"]


def test_prefill_reports_each_length(run: Run, tiny: str) -> None:
    row = run("bench", "prefill", "--lengths", "20,60", "--repeats", "2", "--model", tiny, "--json").json

    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    assert set(metrics["prefill_tok_s"]) == set(metrics["ttft_s"]) == {"20", "60"}
    assert metrics["prefill_tok_s"]["60"] == pytest.approx(60 / metrics["ttft_s"]["60"])


def test_each_row_ends_with_one_line_of_json(run: Run, tiny: str) -> None:
    ran = run("bench", "decode", "waste", "batch", "--repeats", "1", "--model", tiny, "--json")

    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [row["row"] for row in rows] == ["decode", "waste", "batch"]
    assert ran.err == ""
    assert rows[0]["metrics"]["decode_tok_s"] > 0
    assert rows[2]["metrics"]["batch_tok_s"] > 0


def test_people_get_a_table(run: Run, tiny: str) -> None:
    ran = run("bench", "decode", "--repeats", "1", "--model", tiny, "--quiet")

    assert "decode_tok_s" in ran.out
    assert "tok/s" in ran.out
