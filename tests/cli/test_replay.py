"""`foreword replay` from the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    prompts = [[1, 2, number % 7, 100 + number] for number in range(40)]
    path.write_text("".join(json.dumps({"block_ids": ids}) + "\n" for ids in prompts))
    return str(path)


def test_a_table_and_a_chart_for_people(run: Run, trace: str) -> None:
    ran = run("replay", trace, "--policy", "all", "--capacity", "8,16,64", "--kv-bytes", "23040")

    assert (ran.code, ran.err) == (0, "")
    for word in ("slru", "lru", "lfu", "cost", "optimum", "infinite", "block hit", "2.8 MiB", "blocks of 16 tokens"):
        assert word in ran.out
    assert "└" in ran.out


def test_one_capacity_needs_no_chart(run: Run, trace: str) -> None:
    assert "└" not in run("replay", trace, "--capacity", "64").out


def test_one_line_of_json_for_machines(run: Run, trace: str) -> None:
    ran = run("replay", trace, "--capacity", "64", "--json", "--index", "hash", "--scheduler", "--no-optimum")

    rows = ran.json["rows"]
    assert isinstance(rows, list)
    assert len(ran.out.splitlines()) == 1
    assert [(row["policy"], row["capacity"], row["requests"]) for row in rows] == [("slru", 64, 40)]
    assert ran.json["index"] == "hash"


def test_what_is_wrong_in_a_pipe_is_told_of_stdin_and_options_before_it_is_read(run: Run) -> None:
    assert run("replay", "-", stdin="no trace").err.startswith("foreword: stdin: ")
    assert "kv_bytes" in run("replay", "-", "--kv-bytes", "0", stdin="no trace").err


def test_a_trace_may_be_piped_in(run: Run, trace: str) -> None:
    piped = run("replay", "-", "--capacity", "64", "--json", stdin=Path(trace).read_text()).json

    assert piped["rows"] == run("replay", trace, "--capacity", "64", "--json").json["rows"]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture(run: Run, trace: str, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"

    ran = run("replay", trace, "--capacity", "8,64", "--plot", str(path), "--kv-bytes", "23040")

    assert ran.code == 0
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


def test_text_is_tokenised_by_a_model(run: Run, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]}\n')

    ran = run("replay", str(path), "--tokenizer", tiny, "--capacity", "64", "--json")

    assert ran.json["infinite"]["tokens"] == len("<|user|>\nHello\n<|assistant|>\n")  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--capacity", "many"], "capacity: expected numbers of blocks"),
        (["--capacity", "0"], "capacity: expected blocks from 1"),
        (["--block-size", "7"], "block_size: expected a multiple of 8"),
        (["--at-once", "0"], "at_once: expected at least 1"),
        (["--kv-bytes", "0"], "kv_bytes: expected at least 1"),
        (["--plot", "x.doc"], "plot: expected a file name that ends in .svg"),
        (["--plot", "none/x.svg"], "plot: no folder"),
        (["--tokenizer", "none"], "no file or folder none"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_2(run: Run, trace: str, options: list[str], message: str) -> None:
    ran = run("replay", trace, *options)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_bad_trace_is_told_by_line_and_field(run: Run, trace: str) -> None:
    with Path(trace).open("a") as file:
        file.write('{"block_ids": [1, "x"]}\n')

    ran = run("replay", trace)

    assert ran.code == 2
    assert ran.err == f"foreword: {trace}: line 41: Expected `int`, got `str` - at `$.block_ids[1]`\n"
