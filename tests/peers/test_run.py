"""A run from its command line to its table, with servers that answer at once."""

import json
from pathlib import Path

import pytest
from benchmarks.peers.__main__ import main
from benchmarks.peers.rows import Row
from benchmarks.peers.run import Run

from tests.peers.test_comparison import executable


@pytest.fixture
def command(tmp_path: Path, random_model: Path) -> list[str]:
    ours = executable(tmp_path / "foreword", "openai")
    executable(tmp_path / "bin" / "llama-server", "llama")
    flags = [
        "--foreword",
        str(ours),
        "--llama-cpp",
        str(tmp_path / "bin"),
        "--peers",
        "llama.cpp,vllm",
        "--threads",
        "1",
    ]
    return [
        *flags,
        "--model",
        str(random_model),
        "--build",
        str(tmp_path / "b"),
        "--json",
        str(tmp_path / "r" / "r.json"),
    ]


def test_a_run_says_what_it_will_take_and_prints_and_keeps_what_it_found(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--rows", "W7,W8", "--quick", "--foreword-flags", "--kv-dtype f32"]) == 0

    said = capsys.readouterr()
    assert "W7: about 5 s: foreword 2 × 1 s, llama.cpp 1 × 1 s" in said.err
    assert "| row | value | foreword | llama.cpp | times llama.cpp | target |" in said.out
    assert "missing: vllm: not set up by this harness" in said.out
    assert "flags: --threads 1 --quiet --kv-dtype f32\n" in said.out
    assert "W8: llama.cpp's slots: -np 16 -kvu -c 32768" in said.out
    kept = json.loads((tmp_path / "r" / "r.json").read_text())
    assert [row["row"] for row in kept["rows"]] == ["W7", "W8"]
    assert [len(seconds) for seconds in kept["rows"][0]["seconds"].values()] == [2, 1]
    assert kept["machine"]["quick"] is True
    assert len(kept["limits"]) == 3


def test_set_up_measures_nothing(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--rows", "W7", "--set-up"]) == 0

    said = capsys.readouterr()
    assert said.out == ""
    assert "all: about 8 s on two quiet cores" in said.err
    assert "missing: vllm" in said.err
    assert not (tmp_path / "r").exists()


def test_what_was_measured_before_an_interruption_is_told(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Run.measure

    def interrupted_at_w8(run: Run, row: Row) -> None:
        if row.name == "W8":
            raise KeyboardInterrupt
        measure(run, row)

    monkeypatch.setattr(Run, "measure", interrupted_at_w8)
    with pytest.raises(KeyboardInterrupt):
        main([*command, "--rows", "W7,W8", "--repeats", "1"])
    assert "| W7 | start s |" in capsys.readouterr().out


def test_a_model_that_is_none_ends_the_run_with_a_line(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    assert main([*command, "--model", str(bad)]) == 2
    assert capsys.readouterr().err.startswith("bench-peers: ")
