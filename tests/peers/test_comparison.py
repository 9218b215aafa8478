"""Rows are measured in turns; ratios are taken round by round; what is missing is named."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.peers import file_row, limits, model_files, report
from benchmarks.peers.__main__ import parse
from benchmarks.peers.budget import Budget, left_out
from benchmarks.peers.comparison import Measured, Memory, Spread, measure, ratio, spread, verdict
from benchmarks.peers.engine import Answer, EngineError
from benchmarks.peers.rows import ROWS, Row, largest_difference, together_tok_s
from benchmarks.peers.setup import PEERS, Plan, SetupError, foreword, run, set_up, start_of
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


def memory(*bandwidths: float) -> Memory:
    """Bandwidths in the order in which they are asked for; 1,000 bytes a token."""
    left = list(bandwidths)
    return Memory(lambda: left.pop(0) if left else 1e6, 1000)


def measured(ours: list[float | None], theirs: list[float | None], *, larger: bool = True) -> Measured:
    row = Row("R", "a row", {"v": larger}, {"v": {"peer": 2.0}}, {"v": 3.0})
    rounds = {
        "foreword": [None if v is None else {"v": v} for v in ours],
        "peer": [None if v is None else {"v": v} for v in theirs],
    }
    return Measured(row, rounds)


def test_engines_take_turns_and_get_the_same_new_prompt_each_round() -> None:
    diary: list[str] = []
    starts = {name: lambda name=name: FakeEngine(name, diary, 0.01) for name in ("foreword", "peer")}
    found = measure(ROWS["W1"], starts, {"foreword": 2, "peer": 2}, workloads(), memory(), lambda _: None)
    first, second = "10", "74"  # the second round's prompt begins where the first one's 64 tokens end
    assert diary == [
        f"foreword {first}", "foreword closed", f"peer {first}", "peer closed",
        f"foreword {second}", "foreword closed", f"peer {second}", "peer closed",
    ]  # fmt: skip
    rate = spread(found, "peer", "decode tok/s")
    assert rate is not None
    assert rate.median == pytest.approx(100)
    assert [len(seconds) for seconds in found.seconds.values()] == [2, 2]


def test_an_engine_with_fewer_rounds_runs_the_first_ones() -> None:
    diary: list[str] = []
    starts = {name: lambda name=name: FakeEngine(name, diary, 0.01) for name in ("foreword", "peer")}
    found = measure(ROWS["W7"], starts, {"foreword": 2, "peer": 1}, workloads(), memory(), lambda _: None)
    assert diary == ["foreword closed", "peer closed", "foreword closed"]
    assert found.values == {"foreword": [{"start s": 0.5}] * 2, "peer": [{"start s": 0.5}, None]}
    assert found.faults == {}
    assert ratio(found, "peer", "start s") == Spread(1.0, 1.0, 1.0)


def test_a_share_of_the_bandwidth_is_of_the_better_one_measured_around_the_rate() -> None:
    starts = {"foreword": lambda: FakeEngine("foreword", [], 0.01)}
    beside = memory(4e5, 2e5, 1e5, 8e5)
    found = measure(ROWS["W1"], starts, {"foreword": 2}, workloads(), beside, lambda _: None)
    shares = [values["of bandwidth"] for values in found.values["foreword"] if values is not None]
    assert shares == [pytest.approx(100 * 1000 / 4e5), pytest.approx(100 * 1000 / 8e5)]


@pytest.mark.parametrize("name", ROWS)
def test_every_row_gives_the_values_it_promises(name: str) -> None:
    row = ROWS[name]
    starts = {"one": lambda: FakeEngine("one", [], 0.01)}
    (values,) = measure(row, starts, {"one": 1}, workloads(), memory(), lambda _: None).values["one"]
    assert values is not None
    assert list(values) == list(row.larger_is_better)
    assert set(row.targets) | set(row.limits) <= set(values)
    assert "foreword" in row.seconds
    assert not set(row.seconds) & set(row.left_out)


def test_a_failure_costs_one_round_of_one_engine_and_is_named() -> None:
    def fails() -> FakeEngine:
        raise EngineError("peer: did not start")

    starts = {"foreword": lambda: FakeEngine("foreword", [], 0.01), "peer": fails}
    found = measure(ROWS["W1"], starts, {"foreword": 1, "peer": 1}, workloads(), memory(), lambda _: None)
    assert found.values["peer"] == [None]
    assert found.faults == {"peer": "peer: did not start"}
    assert "failed: W1 · peer: peer: did not start" in report.remarks([found], {}, {}, [], {})
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


def test_a_peer_that_does_not_run_a_row_has_a_dash_and_a_reason() -> None:
    row = Row("R", "a row", {"v": True}, seconds={"foreword": 1.0}, left_out={"peer": "can't"})
    line = report.table([Measured(row, {"foreword": [{"v": 1.0}]})], ["peer"]).splitlines()[-1]
    assert line == "| R | v | 1 (1–1) | – | – |  |"
    not_run = left_out([row], ["foreword", "peer"], Budget(2))
    assert not_run == {"R · peer": "can't"}
    assert "not run: R · peer: can't" in report.remarks([], {}, {}, [], not_run)


def test_a_hurry_keeps_two_rounds_of_what_targets_name() -> None:
    row = Row("R", "a row", {"v": True}, {"v": {"peer": 2.0}}, seconds={"foreword": 9, "peer": 80, "other": 50})
    engines = ["foreword", "peer", "other", "absent"]
    assert [Budget(3).rounds(row, name) for name in engines] == [3, 3, 3, 0]
    assert [Budget(2, quick=True).rounds(row, name) for name in engines] == [2, 2, 1, 0]
    long = Row("L", "a long row", {"v": True}, seconds={"foreword": 130, "other": 70})
    assert [Budget(2, quick=True).rounds(long, name) for name in engines] == [1, 0, 0, 0]
    assert "takes about 70 s" in left_out([long], ["other"], Budget(2, quick=True))["L · other"]
    said = Budget(2, quick=True).told([row, long], engines).splitlines()
    assert said == [
        "R: about 3.8 min: foreword 2 × 9 s, peer 2 × 80 s, other 1 × 50 s",
        "L: about 2.2 min: foreword 1 × 130 s",
        "all: about 6.0 min on two quiet cores",
    ]


def test_the_whole_table_in_a_hurry_takes_less_than_25_minutes() -> None:
    rows = [*ROWS.values(), file_row.row(dict.fromkeys(["as pulled", *model_files.OTHER_TYPES, "7B Q4_0"], HERE))]
    engines = ["foreword", *PEERS]
    assert sum(Budget(2, quick=True).seconds(row, engines) for row in rows) < 25 * 60


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
    assert ready["llama.cpp"]["version"] == "llama version 7.7"
    assert missing["openvino"] == missing["transformers"] == "not asked for"
    assert missing["vllm"].startswith("not set up by this harness")
    engine = start_of("llama.cpp", plan)()
    engine.close()
    assert engine.notes["flags"].startswith("-t 2 -tb 2")
    assert "missing: openvino: not asked for" in report.remarks([], {}, missing, [], {})


def test_a_peer_that_is_not_where_it_should_be_is_named(tmp_path: Path) -> None:
    plan = Plan(model=tmp_path / "m", threads=1, build=tmp_path, llama_cpp=tmp_path / "empty")
    ready, missing = set_up(plan, ["llama.cpp"], lambda _: None)
    assert not ready
    assert missing["llama.cpp"] == f"no llama-server in {tmp_path / 'empty'}"


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_step_of_a_set_up_that_takes_too_long_ends_with_all_it_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with pytest.raises(SetupError, match=r"sh was not done after 1 s; see .*log"):
        run(["/bin/sh", "-c", f"sleep 60 & echo $! > {started}; wait"], tmp_path / "log", limit_s=1)
    deadline = time.monotonic() + 20
    while is_running(int(started.read_text())):
        assert time.monotonic() < deadline


def test_a_step_that_fails_or_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"sh ended with code 3; see .*log"):
        run(["/bin/sh", "-c", "exit 3"], tmp_path / "log")
    with pytest.raises(SetupError, match=r"gone: .*No such file"):
        run([str(tmp_path / "gone")], tmp_path / "log")


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
    assert "read GB/s 12.5 (12.5–12.5)" in report.remarks([], {}, {}, [{"read GB/s": 12.5}], {})
    assert limits.read_bytes_s(program, 2) == 12.5e9
    program.write_text("#!/bin/sh\necho '{\"read GB/s\": 0}'\n")
    with pytest.raises(SetupError, match="no bandwidth"):
        limits.read_bytes_s(program, 2)
    program.write_text("#!/bin/sh\necho nonsense\n")
    with pytest.raises(SetupError, match="not numbers"):
        limits.measure(program, 2)
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(SetupError, match="code 3"):
        limits.measure(program, 2)


def test_the_limits_program_builds_and_measures(tmp_path: Path) -> None:
    program = limits.build(tmp_path)
    found = limits.measure(program, 1)
    assert found["read GB/s"] > 0.1
    assert limits.read_bytes_s(program, 1) > 1e8
    assert list(limits.measure(program, 1, "read")) == ["read GB/s"]


def test_the_limits_are_no_less_true_where_threads_have_to_wait_for_a_processor(tmp_path: Path) -> None:
    program, processors = limits.build(tmp_path), os.cpu_count() or 1
    command = [str(program), str(4 * processors), "4", "read"]
    said = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(12)]
    assert max(json.loads(one)["read GB/s"] for one in said) < 100 * processors  # no processor's caches give as much


def test_an_unknown_row_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--rows", "W1,W99", "--model", str(tmp_path)])
    assert "no such row: W99; known: W1" in capsys.readouterr().err
    assert parse(["--rows", "W2,W1,W2", "--peers", "", "--model", str(tmp_path)]).peers == []
