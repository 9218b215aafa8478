"""Each planted fault is found, at its place; what repairs are said to gain is what replaying the repaired log gains."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.lint.lint import Report, lint, mended
from foreword.lint.log import from_bodies
from foreword.lint.rules import RULES
from tests.lint.faults import PLANTS, Body, clean_log

OF_MARKERS = {"no_marker", "marker_moved", "lookback_exceeded", "ttl_passed", "under_minimum"}


def linted(log: list[Body], **options: Any) -> Report:
    requests = from_bodies(log)
    return lint(lambda: iter(requests), **options)


def planted(*names: str, seed: int = 1) -> list[Body]:
    log = clean_log()
    for name in names:
        PLANTS[name].plant(log, random.Random(seed))
    return log


def test_a_log_without_faults_has_no_findings() -> None:
    report = linted(clean_log())

    assert report.findings == ()
    assert report.repaired == report.scores
    assert report.score("exact").hit_rate > 0.9
    assert report.score("anthropic").hit_rate == pytest.approx(report.score("exact").hit_rate, abs=0.002)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_at_its_place(name: str) -> None:
    report = linted(planted(name))

    found = {finding.cause: finding for finding in reversed(report.findings)}
    finding = found[name]  # type: ignore[index]  # a KeyError says what was found instead
    assert finding.place in PLANTS[name].places
    assert finding.offset == PLANTS[name].offset
    assert 0 < finding.earlier_line < finding.line
    assert finding.advice
    # Nothing else is blamed, but for what the fault does to markers and lifetimes.
    assert set(found) - {name} <= OF_MARKERS
    if name in OF_MARKERS:
        assert set(found) <= {name, "marker_moved"}


@pytest.mark.parametrize("name", PLANTS)
def test_a_repaired_log_replays_as_predicted(name: str) -> None:
    log = planted(name)
    report = linted(log)

    requests = from_bodies(log)
    bodies = [{"body": r.body, "timestamp": r.time_s} for r in mended(lambda: iter(requests), report.repairs)()]

    again = linted(bodies, repair=False)
    assert again.scores == report.repaired
    if PLANTS[name].can_be_mended:
        clean = linted(clean_log())
        for rules in ("exact", "anthropic"):
            assert again.score(rules).hit_rate > clean.score(rules).hit_rate - 0.03
            assert again.score(rules).hit_rate >= report.score(rules).hit_rate


@given(
    names=st.sets(
        st.sampled_from(["changing_id", "changing_time", "user_data_in_system"]), min_size=1, max_size=1
    ).flatmap(
        lambda text: st.sets(
            st.sampled_from(["tools_reordered", "keys_reordered", "unstable_few_shots", "ttl_passed"]), min_size=1
        ).map(lambda others: sorted(text | others))
    ),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12, deadline=None)
def test_faults_hidden_behind_one_another_are_all_found(names: list[str], seed: int) -> None:
    report = linted(planted(*names, seed=seed))

    assert set(names) <= {finding.cause for finding in report.findings}
    assert report.repaired[0].hit_rate > 0.9


def test_text_is_hidden_unless_asked_for() -> None:
    log = planted("user_data_in_system")

    assert all(finding.text == "" for finding in linted(log).findings)
    assert linted(log, show_text=True).findings[0].text == "Grace,"
    assert "Grace" not in str(linted(log).as_json())


def test_every_rule_set_reads_no_more_than_the_exact_prefix() -> None:
    for name in PLANTS:
        report = linted(planted(name), repair=False)
        exact = report.score("exact").read
        for rules in RULES:
            assert report.score(rules).read <= exact, (name, rules)


def test_costs_follow_the_multiples() -> None:
    report = linted(clean_log(), repair=False)

    openai, anthropic = report.score("openai"), report.score("anthropic")
    assert openai.cost == pytest.approx(openai.tokens - 0.9 * openai.read)
    assert anthropic.cost == pytest.approx(anthropic.tokens - 0.9 * anthropic.read + 0.25 * anthropic.written)
    assert anthropic.written > 0
