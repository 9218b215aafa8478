"""Made-up requests: as many tokens as asked for, as much in common as asked for, the same on every run."""

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import InvalidRequestError
from foreword.load.call import Call
from foreword.load.workload import FIRST_ID, LAST_ID, Workload


def calls(count: int, **fields: Any) -> list[Call]:
    workload = Workload(**({"model": "m", "lengths": ((40, 4),)} | fields))
    return [call for session in islice(workload.sessions(), count) for call in session.calls]


def prompts(count: int, **fields: Any) -> list[list[int]]:
    return [json.loads(call.body)["prompt"] for call in calls(count, **fields)]


@given(st.integers(1, 200), st.floats(0, 1), st.integers(0, 5))
def test_prompts_have_their_length_and_share_what_was_asked(length: int, shared: float, seed: int) -> None:
    found = prompts(6, lengths=((length, 3),), shared=shared, seed=seed)

    num_shared = int(length * shared)
    assert {len(prompt) for prompt in found} == {length}
    assert {tuple(prompt[:num_shared]) for prompt in found} == {tuple(found[0][:num_shared])}
    assert all(FIRST_ID <= token <= LAST_ID for prompt in found for token in prompt)


def test_prompts_part_where_they_no_longer_share() -> None:
    found = prompts(20, shared=0.5)

    assert len({tuple(prompt[20:25]) for prompt in found}) == 20


def test_there_are_as_many_beginnings_as_asked_for() -> None:
    found = prompts(100, shared=0.5, num_prefixes=3)

    assert len({tuple(prompt[:20]) for prompt in found}) == 3


def test_the_same_seed_is_the_same_load() -> None:
    assert calls(50, garbage=0.1, leave=0.1, seed=3) == calls(50, garbage=0.1, leave=0.1, seed=3)
    assert calls(5, seed=3) != calls(5, seed=4)


def test_shares_of_misbehaviour_are_met() -> None:
    found = Counter((call.is_garbage, call.leaves_after is not None) for call in calls(2000, garbage=0.1, leave=0.2))

    assert found[True, False] == pytest.approx(200, rel=0.3)
    assert found[False, True] == pytest.approx(360, rel=0.3)


def test_lengths_are_taken_in_turn() -> None:
    bodies = [json.loads(call.body) for call in calls(4, lengths=((10, 1), (20, 2)))]

    assert [(len(body["prompt"]), body["max_tokens"]) for body in bodies] == [(10, 1), (20, 2)] * 2


def test_a_chat_has_the_common_beginning_as_its_system_turn() -> None:
    first, second = [json.loads(call.body)["messages"] for call in calls(2, chat=True, shared=0.5)]

    assert first[0] == second[0]
    assert first[0]["role"] == "system"
    assert first[1] != second[1]
    assert len(first[1]["content"].split()) == 20


@pytest.mark.parametrize(
    "fields",
    [{"shared": 1.5}, {"leave": -0.1}, {"garbage": 2}, {"lengths": ()}, {"lengths": ((0, 1),)}, {"num_prefixes": 0}],
)
def test_what_cannot_be_asked_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(fields))):
        calls(1, **fields)
