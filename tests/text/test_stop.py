"""Stop strings across pieces of text, against a plain search of the whole text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from foreword.text.stop import StopChecker

LETTERS = st.text("abc", max_size=40)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)


def run(pieces: list[str], stops: list[str], include: bool) -> tuple[str, int | None]:
    checker = StopChecker(stops, include=include)
    emitted = ""
    for piece in pieces:
        text, index = checker.push(piece)
        emitted += text
        if index is not None:
            return emitted, index
    return emitted + checker.finish(), None


def plain_search(text: str, stops: list[str], include: bool) -> tuple[str, int | None]:
    """The first place where any stop string is complete; there, the longest, and of equal ones the first."""
    for stop in range(1, len(text) + 1):
        found = [(len(s), -i) for i, s in enumerate(stops) if text[:stop].endswith(s)]
        if found:
            size, index = max(found)
            return text[: stop if include else stop - size], -index
    return text, None


def cut(text: str, borders: list[int]) -> list[str]:
    places = sorted({0, len(text), *(border % (len(text) + 1) for border in borders)})
    return [text[start:stop] for start, stop in pairwise(places)]


@given(LETTERS, STOPS, st.booleans(), st.lists(st.integers(0, 100), max_size=10))
def test_the_outcome_is_that_of_a_search_of_the_whole_text(
    text: str, stops: list[str], include: bool, borders: list[int]
) -> None:
    assert run(cut(text, borders), stops, include) == plain_search(text, stops, include)


@given(LETTERS, STOPS)
def test_no_more_is_held_back_than_may_be_the_beginning_of_a_stop_string(text: str, stops: list[str]) -> None:
    checker = StopChecker(stops)
    emitted, seen = "", ""
    for character in text:
        piece, index = checker.push(character)
        emitted, seen = emitted + piece, seen + character
        if index is not None:
            return
        beginnings = {s[:size] for s in stops for size in range(len(s))}
        held = max(size for size in range(len(seen) + 1) if seen[len(seen) - size :] in beginnings)
        assert emitted == seen[: len(seen) - held]


def test_a_stop_string_may_be_spread_over_many_pieces() -> None:
    assert run(["abc", "<", "en", "d", "> more"], ["<end>"], False) == ("abc", 0)
    assert run(["abc", "<", "en", "d", "> more"], ["<end>"], True) == ("abc<end>", 0)


def test_what_only_began_like_a_stop_string_is_given_out_in_the_end() -> None:
    assert run(["abc<en"], ["<end>"], False) == ("abc<en", None)


def test_after_a_stop_string_nothing_follows() -> None:
    checker = StopChecker(["x"])

    assert checker.push("abxcd") == ("ab", 0)
    assert checker.push("more") == ("", 0)
    assert checker.finish() == ""
    assert checker.stopped_index == 0


def test_without_stop_strings_text_passes_through() -> None:
    checker = StopChecker([])

    assert checker.push("anything") == ("anything", None)
    assert checker.finish() == ""


def test_a_long_run_of_beginnings_costs_no_more_than_its_length() -> None:
    checker = StopChecker(["a" * 1000 + "b"])

    emitted = "".join(checker.push("a" * 997)[0] for _ in range(200)) + checker.finish()

    assert emitted == "a" * 997 * 200
