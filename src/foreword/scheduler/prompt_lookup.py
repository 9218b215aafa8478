"""What a sequence may say next: what followed where it last said the same.

Source   Saxena, Prompt Lookup Decoding, 2023; Yang et al., LLMA, 2023 (arXiv 2304.04487).

    tokens     7 8 9 4 4 1 | 7 8 9        the last three were said before, and 4 came next
    find       ──────▲                    position 3, matched over 3 tokens
    continue   4 4 1 7 8 9 4 …            on into the sequence's own end, as often as asked

Answers that quote their prompt (retrieval, edits of code, summaries) say much of it again to the letter.
"""

from collections.abc import Sequence

from foreword.core.types import TokenId

MAX_NGRAM = 3
MAX_MATCH = 8
"""Most tokens compared before a place that was found: beyond it a longer match tells no more."""

WINDOW = 1 << 15
"""Positions kept in one generation of the index; two are kept."""

_TOKEN_BITS = 32


class PromptLookup:
    """Index of one sequence's runs of 1 to 3 tokens, each with the place behind its latest occurrence.

    Cost: O(1) for each token, once. Memory: what at most 2 · `window` positions take; when `window` positions are
    indexed a new generation begins and the one before the last is forgotten.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._num_indexed = 0
        self._young: list[dict[int, int]] = [{} for _ in range(MAX_NGRAM)]
        self._old: list[dict[int, int]] = [{} for _ in range(MAX_NGRAM)]

    def find(self, tokens: Sequence[TokenId]) -> tuple[int, int] | None:
        """The place behind the latest earlier occurrence of the longest known ending, and how many tokens match there.

        `tokens` are those of the call before and more. None when the last token was not said before.
        """
        self._index(tokens)
        for n, key in reversed(list(enumerate(_endings(tokens, len(tokens))))):
            place = self._young[n].get(key, self._old[n].get(key))
            if place is not None:
                return place, _match_len(tokens, place, n + 1)
        return None

    def _index(self, tokens: Sequence[TokenId]) -> None:
        """Take in every place that has a token behind it."""
        for place in range(self._num_indexed + 1, len(tokens)):
            if place % self._window == 0:
                self._young, self._old = [{} for _ in range(MAX_NGRAM)], self._young
            for found, key in zip(self._young, _endings(tokens, place), strict=False):
                found[key] = place
            self._num_indexed = place


def continuation(tokens: Sequence[TokenId], place: int, count: int) -> list[TokenId]:
    """The `count` tokens from `place` on; where they reach the end of `tokens` they go on with themselves."""
    found = list(tokens[place : place + count])
    while len(found) < count:
        found.append(found[len(found) - (len(tokens) - place)])
    return found


def _endings(tokens: Sequence[TokenId], place: int) -> list[int]:
    """The last token before `place`, the last two, the last three, each as one number."""
    keys = []
    key = 0
    for n in range(1, min(MAX_NGRAM, place) + 1):
        key = key << _TOKEN_BITS | tokens[place - n]
        keys.append(key)
    return keys


def _match_len(tokens: Sequence[TokenId], place: int, known: int) -> int:
    """Tokens before `place` that equal those before the end, of which `known` are known to."""
    matched = known
    while matched < min(MAX_MATCH, place) and tokens[place - 1 - matched] == tokens[-1 - matched]:
        matched += 1
    return matched
