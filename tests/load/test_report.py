"""Figures of a load, against the same definitions worked out by hand."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.load.call import Record
from foreword.load.report import Objectives, report, spread


def answered(due: float, first: float, gaps: list[float], *, tokens: int, **fields: int) -> Record:
    last = first + sum(gaps)
    return Record(
        due_s=due,
        sent_s=due,
        first_s=first,
        last_s=last,
        end_s=last + 0.5,
        gaps_s=array("d", gaps),
        completion_tokens=tokens,
        **fields,  # type: ignore[arg-type]  # counts of tokens
    )


def test_times_are_those_of_the_definitions() -> None:
    records = [
        answered(10.0, 11.0, [0.5, 1.5], tokens=3, prompt_tokens=100, cached_tokens=80),
        answered(10.0, 13.0, [1.0], tokens=2, prompt_tokens=100, cached_tokens=0),
    ]

    found = report(records)

    assert found["ttft_s"] == {"mean": 2.0, "p50": 2.0, "p90": 2.8, "p95": 2.9, "p99": pytest.approx(2.98), "max": 3.0}
    assert spread([0.5, 1.5, 1.0]) == found["itl_s"]
    assert spread([1.0, 1.0]) == found["tpot_s"]
    assert spread([3.5, 4.5]) == found["e2e_s"]
    assert found["hit_ratio"] == 0.4
    assert found["wall_s"] == 4.5
    assert found["output_tok_s"] == pytest.approx(5 / 4.5)


def test_what_failed_is_counted_by_kind_and_is_in_no_time() -> None:
    good = answered(0.0, 1.0, [1.0], tokens=2)
    failed = [Record(due_s=0.0, end_s=9.0, outcome=kind) for kind in ("http_429", "http_429", "cut", "left", "refused")]

    found = report([good, *failed])

    assert (found["requests"], found["complete"], found["left"], found["garbage_refused"]) == (6, 1, 1, 1)
    assert found["errors"] == {"cut": 1, "http_429": 2}
    assert found["e2e_s"] == spread([2.5])


def test_goodput_counts_answers_within_both_objectives() -> None:
    records = [
        answered(0.0, 1.0, [0.1], tokens=2),
        answered(0.0, 1.0, [0.9], tokens=2),  # a token too slow
        answered(0.0, 3.0, [0.1], tokens=2),  # a start too late
        answered(0.0, 1.0, [], tokens=1),  # one token has no rate
    ]
    wall_s = 3.6

    assert report(records, Objectives(ttft_s=2.0, tpot_s=0.5))["goodput_per_second"] == pytest.approx(2 / wall_s)
    assert report(records)["goodput_per_second"] == pytest.approx(4 / wall_s)


def test_what_came_after_the_last_was_asked_is_not_in_the_rate_of_that_time() -> None:
    records = [Record(due_s=10.0, sent_s=10.0, end_s=end_s) for end_s in (11.0, 12.0, 14.0, 19.0)]

    found = report(records, asked_s=4.0)

    assert found["requests_per_second_while_asked"] == pytest.approx(3 / 4)
    assert found["requests_per_second"] == pytest.approx(4 / 9)
    assert report(records)["requests_per_second_while_asked"] == pytest.approx(4 / 9)
    assert report(records, asked_s=60.0)["requests_per_second_while_asked"] == pytest.approx(4 / 9)


def test_a_load_of_which_nothing_came_has_no_times() -> None:
    found = report([])

    assert found["requests"] == 0
    assert found["ttft_s"] == {}


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_lie_in_order_between_least_and_most(values: list[float]) -> None:
    found = list(spread(values).values())[1:]

    assert found == sorted(found)
    assert min(values) <= found[0] <= found[-1] == max(values)
