"""The guard takes what one call adds, and says where it is off by more than its tolerance."""

import json
from pathlib import Path

import pytest
from benchmarks.guard.__main__ import COUNTS, GuardError, compare, count, main

HERE = Path(__file__).parent


def fake_valgrind(folder: Path, each: int) -> str:
    """Counts 1,000 for the set-up and `each` for every repeat."""
    program = folder / "valgrind"
    program.write_text(
        f'#!/bin/sh\nfor last; do :; done\necho "==1== I   refs:      $(( 1000 + {each} * last ))" >&2\n'
    )
    program.chmod(0o755)
    return str(program)


def fake_program(folder: Path) -> Path:
    program = folder / "kernels"
    program.write_text('#!/bin/sh\necho "product one"\necho "attention two"\n')
    program.chmod(0o755)
    return program


def test_set_up_falls_out_of_a_count(tmp_path: Path) -> None:
    assert count(fake_valgrind(tmp_path, 250), Path("kernels"), "product") == 250


def test_a_case_that_costs_nothing_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match="two calls took 1,000 instructions, one 1,000"):
        count(fake_valgrind(tmp_path, 0), Path("kernels"), "product")


@pytest.mark.parametrize(
    ("now", "well", "word"),
    [(100, True, "+0.0%"), (102, True, "+2.0%"), (104, False, "MORE"), (96, False, "less: keep it with --keep")],
)
def test_more_than_the_tolerance_either_way_is_off(now: int, well: bool, word: str) -> None:
    (line,), is_well = compare({"a": now}, {"a": 100})
    assert is_well is well
    assert line.endswith(word)


def test_a_case_never_kept_is_off() -> None:
    (line,), is_well = compare({"a": 5}, {})
    assert not is_well
    assert "none kept" in line


def test_kept_counts_hold_until_the_kernels_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, program = tmp_path / "counts.json", str(fake_program(tmp_path))
    flags = ["--program", program, "--valgrind", fake_valgrind(tmp_path, 500)]
    assert main(flags, kept) == 1  # nothing is kept yet
    assert main([*flags, "--keep"], kept) == 0
    assert main(flags, kept) == 0
    fake_valgrind(tmp_path, 600)
    assert main(flags, kept) == 1
    assert "product one: 600, kept 500, +20.0% MORE" in capsys.readouterr().out
    assert list(json.loads(kept.read_text()).values()) == [{"attention two": 500, "product one": 500}]


def test_without_valgrind_nothing_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--valgrind", str(tmp_path / "gone")], tmp_path / "counts.json") == 2
    assert "not found" in capsys.readouterr().err


def test_what_is_kept_in_the_repository_is_whole() -> None:
    kept = json.loads(COUNTS.read_text())
    assert kept
    for counts in kept.values():
        assert counts
        assert all(isinstance(number, int) and number > 0 for number in counts.values())
