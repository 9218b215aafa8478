"""Rows are measured in turns; ratios are taken round by round; what is missing is named."""

import json
import stat
import sys
from pathlib import Path

import pytest
from benchmarks.peers import limits, report
from benchmarks.peers.__main__ import parse
from benchmarks.peers.comparison import Measured, Spread, measure, ratio, spread, verdict
from benchmarks.peers.engine import Answer, EngineError
from benchmarks.peers.rows import ROWS, Row, largest_difference, together_tok_s
from benchmarks.peers.setup import Plan, SetupError, foreword, set_up
from benchmarks.peers.workloads import Tape, Workloads

HERE = Path(__file__).parent


class FakeEngine:
    """Answers after fixed times, and writes down that it was asked."""

    def __init__(self, name: str, diary: list[str], token_s: float) -> None:
        self.name, self.notes, self.start_s = name, {"version": "1", "flags": ""}, 0.5
        self._diary, self._token_s = diary, token_s

    def ask(self, prompt: list[int], num_tokens: int, logprobs: int = 0) -> Answer:
        self._diary.append(f"{self.name} {prompt[0]}")
        times = [self._token_s * (k + 1) for k in range(num_tokens)]
        likely = [{"a": -0.5}] * num_tokens if logprobs else []
        return Answer(times, num_tokens, times[-1], 0.0, "", likely)

    def memory_mib(self) -> float | None:
        return 100.0

    def close(self) -> None:
        self._diary.append(f"{self.name} closed")


def workloads() -> Workloads:
    return Workloads(Tape(list(range(10, 5000))).take)


def measured(ours: list[float | None], theirs: list[float | None], *, larger: bool = True) -> Measured:
    row = Row("R", "a row", lambda _: lambda _: {}, {"v": larger}, {"v": {"peer": 2.0}}, {"v": 3.0})
    rounds = {
        "foreword": [None if v is None else {"v": v} for v in ours],
        "peer": [None if v is None else {"v": v} for v in theirs],
    }
    return Measured(row, rounds)


def test_engines_take_turns_and_get_the_same_new_prompt_each_round() -> None:
    diary: list[str] = []
    starts = {name: lambda name=name: FakeEngine(name, diary, 0.01) for name in ("foreword", "peer")}
    found = measure(ROWS["W1"], starts, workloads(), 2, lambda _: None)
    first, second = "10", "74"  # the second round's prompt begins where the first one's 64 tokens end
    assert diary == [
        f"foreword {first}", "foreword closed", f"peer {first}", "peer closed",
        f"foreword {second}", "foreword closed", f"peer {second}", "peer closed",
    ]  # fmt: skip
    rate = spread(found, "peer", "decode tok/s")
    assert rate is not None
    assert rate.median == pytest.approx(100)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_gives_the_values_it_promises(name: str) -> None:
    values = ROWS[name].prepare(workloads())(FakeEngine("one", [], 0.01))
    assert list(values) == list(ROWS[name].larger_is_better)
    assert set(ROWS[name].targets) | set(ROWS[name].limits) <= set(values)


def test_a_failure_costs_one_round_of_one_engine_and_is_named() -> None:
    def fails() -> FakeEngine:
        raise EngineError("peer: did not start")

    starts = {"foreword": lambda: FakeEngine("foreword", [], 0.01), "peer": fails}
    found = measure(ROWS["W1"], starts, workloads(), 1, lambda _: None)
    assert found.values["peer"] == [None]
    assert found.faults == {"peer": "peer: did not start"}
    assert "failed: W1 · peer: peer: did not start" in report.remarks([found], {}, {}, [])
    assert "–" in report.table([found], ["peer"])


def test_ratios_are_taken_round_by_round_so_that_drift_falls_out() -> None:
    both = measured([10, 40, 90], [5, 20, 30])
    assert ratio(both, "peer", "v") == Spread(2.0, 2.0, 3.0)
    assert ratio(measured([10, 40], [5, 20], larger=False), "peer", "v") == Spread(0.5, 0.5, 0.5)


def test_rounds_that_one_of_them_lacks_do_not_count() -> None:
    assert ratio(measured([10, None, 8], [5, 20, None]), "peer", "v") == Spread(2.0, 2.0, 2.0)
    assert ratio(measured([None], [5]), "peer", "v") is None


def test_nothing_is_times_better_than_zero() -> None:
    assert ratio(measured([0.0], [0.0], larger=False), "peer", "v") is None
    assert ratio(measured([0.0], [0.2], larger=False), "peer", "v") is None


def test_a_verdict_says_reached_short_or_not_measured() -> None:
    assert verdict(measured([10], [5]), "v") == "2 × peer: reached, ≥ 3: reached"
    assert verdict(measured([2.9], [5]), "v") == "2 × peer: short, ≥ 3: short"
    assert verdict(measured([2.9], [5.8], larger=False), "v") == "2 × peer: reached, ≤ 3: reached"
    assert verdict(measured([None], [5]), "v") == "2 × peer: not measured, ≥ 3: not measured"


def test_the_table_has_median_spread_ratio_and_verdict() -> None:
    head, rule, line = report.table([measured([10, 40, 90], [5, 20, 30])], ["peer"]).splitlines()
    assert head == "| row | value | foreword | peer | times peer | target |"
    assert rule == "| --- | --- | --- | --- | --- | --- |"
    assert line == "| R | v | 40 (10–90) | 20 (5–30) | 2 (2–3) | 2 × peer: reached, ≥ 3: reached |"


def test_the_document_keeps_every_round_and_is_json() -> None:
    whole = report.document([measured([1], [2])], {}, {"x": "why"}, [{"read GB/s": 9.0}], {"cores": 2})
    assert json.loads(json.dumps(whole))["rows"][0]["rounds"] == {"foreword": [{"v": 1}], "peer": [{"v": 2}]}
    assert whole["missing"] == {"x": "why"}


def test_logprobs_are_compared_until_the_texts_part() -> None:
    one = Answer(logprobs=[{"a": -0.1, "b": -3.0}, {"a": -0.2}, {"z": -0.1}])
    other = Answer(logprobs=[{"a": -0.1, "b": -3.5}, {"a": -0.3, "c": -0.1}, {"z": -9.0}])
    assert largest_difference(one, other) == pytest.approx(0.5)
    assert largest_difference(one, one) == 0
    assert largest_difference(one, Answer()) == float("inf")


def test_a_shared_rate_counts_while_all_streams_run() -> None:
    early = Answer([1.0, 2.0, 3.0, 4.0], 4, 4.0, sent_at_s=0.0)
    late = Answer([1.0, 2.0, 3.0], 3, 3.0, sent_at_s=1.0)
    assert together_tok_s([early, late]) == 2.0  # from 2 to 4: two tokens of each
    apart = Answer([1.0, 2.0], 2, 2.0, sent_at_s=10.0)
    assert together_tok_s([early, apart]) == 5 / 11  # one after the other: over the whole time


def test_a_tape_begins_again_at_another_place() -> None:
    tape = Tape(list(range(10)))
    assert tape.take(4) == [0, 1, 2, 3]
    assert len(tape.take(40)) == 40
    with pytest.raises(ValueError, match="tokens"):
        Tape([])


def executable(path: Path, kind: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_server.py"} {kind} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_built_peer_is_taken_and_others_are_named(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "llama-server", "llama")
    plan = Plan(model=tmp_path / "m.gguf", threads=2, build=tmp_path / "b", llama_cpp=tmp_path / "bin")
    ready, missing = set_up(plan, ["llama.cpp", "vllm"], lambda _: None)
    assert list(ready) == ["llama.cpp"]
    assert missing["openvino"] == missing["transformers"] == "not asked for"
    assert missing["vllm"].startswith("not set up by this harness")
    engine = ready["llama.cpp"]()
    engine.close()
    assert engine.notes["version"] == "llama version 7.7"
    assert engine.notes["flags"].startswith("-t 2 -tb 2")
    assert "missing: openvino: not asked for" in report.remarks([], {}, missing, [])


def test_a_peer_that_is_not_where_it_should_be_is_named(tmp_path: Path) -> None:
    plan = Plan(model=tmp_path / "m", threads=1, build=tmp_path, llama_cpp=tmp_path / "empty")
    ready, missing = set_up(plan, ["llama.cpp"], lambda _: None)
    assert not ready
    assert missing["llama.cpp"] == f"no llama-server in {tmp_path / 'empty'}"


def test_ours_is_run_by_its_command(tmp_path: Path) -> None:
    ours = executable(tmp_path / "foreword", "openai")
    plan = Plan(model=tmp_path / "m", threads=1, build=tmp_path, foreword=(str(ours),))
    engine = foreword(plan)()
    try:
        assert engine.ask([1], 2).text == "t0t1"
    finally:
        engine.close()


def test_limits_are_numbers_or_an_error(tmp_path: Path) -> None:
    program = tmp_path / "limits"
    program.write_text("#!/bin/sh\necho '{\"read GB/s\": 12.5}'\n")
    program.chmod(0o755)
    assert limits.measure(program, 2) == {"read GB/s": 12.5}
    assert "read GB/s 12.5 (12.5–12.5)" in report.remarks([], {}, {}, [{"read GB/s": 12.5}])
    program.write_text("#!/bin/sh\necho nonsense\n")
    with pytest.raises(SetupError, match="not numbers"):
        limits.measure(program, 2)
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(SetupError, match="code 3"):
        limits.measure(program, 2)


def test_the_limits_program_builds_and_measures(tmp_path: Path) -> None:
    found = limits.measure(limits.build(tmp_path), 1)
    assert found["read GB/s"] > 0.1


def test_an_unknown_row_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--rows", "W1,W99", "--model", str(tmp_path)])
    assert "no such row: W99; known: W1" in capsys.readouterr().err
    assert parse(["--rows", "W2,W1,W2", "--peers", "", "--model", str(tmp_path)]).peers == []
