"""What is remembered of an hour: sums that match, that end with the hour, and that never grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.engine.traffic import PREFILL_STEP_TOKENS, SLICE_S, WINDOW_S, Traffic
from foreword.kv_cache.explain import MissCause, MissReport

CAUSES = st.sampled_from(list(MissCause))
STARTS = st.lists(st.tuples(st.integers(0, 900), st.integers(2, 50), st.floats(0, 1), CAUSES), max_size=40)


@given(STARTS)
def test_the_summary_is_that_of_the_requests_of_the_last_hour(
    starts: list[tuple[int, int, float, MissCause]],
) -> None:
    now = 0.0
    traffic = Traffic(lambda: now)
    noted = []
    for wait, prompt_len, share, cause in starts:
        now += wait
        matched = int(share * (prompt_len - 1))
        traffic.started(prompt_len, MissReport(matched, cause))
        noted.append((now, prompt_len, matched, cause))

    told = traffic.summary()

    # A minute is forgotten as a whole, when its first request is an hour old.
    surely = [n for n in noted if n[0] > now - WINDOW_S + SLICE_S]
    perhaps = [n for n in noted if n[0] > now - WINDOW_S]
    assert len(surely) <= told.num_requests <= len(perhaps)
    kept = noted[len(noted) - told.num_requests :]
    assert told.prompt_tokens == sum(n[1] for n in kept)
    assert told.hit_tokens == sum(n[2] for n in kept)
    assert told.num_by_cause == {c.value: count for c in MissCause if (count := sum(n[3] is c for n in kept))}
    changed = [n[2] * 10 // n[1] for n in kept if n[3] is MissCause.CHANGED]
    assert told.changed_at == [changed.count(tenth) for tenth in range(10)]
    assert len(traffic._slices) <= WINDOW_S / SLICE_S


def test_the_rate_of_prefill_is_that_of_large_steps() -> None:
    traffic = Traffic()
    traffic.stepped(1, 100.0)
    assert traffic.summary().prefill_tok_s is None

    traffic.stepped(PREFILL_STEP_TOKENS, 0.5)
    traffic.stepped(3 * PREFILL_STEP_TOKENS, 0.5)

    assert traffic.summary().prefill_tok_s == pytest.approx(4 * PREFILL_STEP_TOKENS)
