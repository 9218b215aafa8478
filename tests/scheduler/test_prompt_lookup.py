"""Prompt lookup against looking through the whole past."""

from hypothesis import given
from hypothesis import strategies as st

from foreword.core.types import TokenId
from foreword.scheduler.prompt_lookup import MAX_MATCH, MAX_NGRAM, PromptLookup, continuation
from tests.oracles.naive_lookup import naive_continuation, naive_find


def ids(tokens: list[int]) -> list[TokenId]:
    return [TokenId(token) for token in tokens]


@given(
    tokens=st.lists(st.sampled_from([0, 1, 2, 2**31 - 1]), min_size=1, max_size=80),
    asked=st.sets(st.integers(1, 80)),
    window=st.integers(1, 50),
)
def test_the_index_finds_what_looking_through_the_past_finds(tokens: list[int], asked: set[int], window: int) -> None:
    lookup = PromptLookup(window)

    for length in sorted({*asked, len(tokens)}):
        said = ids(tokens[:length])
        assert lookup.find(said) == naive_find(said, window, MAX_NGRAM, MAX_MATCH)


@given(tokens=st.lists(st.integers(0, 5), min_size=2, max_size=30), data=st.data())
def test_a_continuation_goes_on_with_itself(tokens: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(tokens) - 1))
    count = data.draw(st.integers(0, 40))

    assert continuation(ids(tokens), place, count) == naive_continuation(tokens, place, count)


def test_the_longest_ending_counts_and_then_the_latest_place() -> None:
    said = ids([7, 8, 9, 4, 9, 5, 7, 8, 9, 6, 8, 9])

    assert PromptLookup().find(said) == (9, 2)
    assert PromptLookup().find(said[:9]) == (3, 3)
    assert PromptLookup().find(ids([1, 2, 3])) is None


def test_memory_does_not_grow_with_what_is_said() -> None:
    lookup = PromptLookup(window=100)
    said = ids(list(range(5000)))

    assert lookup.find(said) is None
    assert sum(map(len, [*lookup._young, *lookup._old])) <= 2 * 100 * MAX_NGRAM
