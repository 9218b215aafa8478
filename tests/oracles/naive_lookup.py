"""Prompt lookup by looking: the whole past is read for every question."""

from collections.abc import Sequence


def naive_find(tokens: Sequence[int], window: int, max_ngram: int, max_match: int) -> tuple[int, int] | None:
    """What `PromptLookup.find` must answer."""
    oldest = max(1, ((len(tokens) - 1) // window - 1) * window)
    for n in range(max_ngram, 0, -1):
        for place in range(len(tokens) - 1, oldest - 1, -1):
            if n <= place and tokens[place - n : place] == tokens[len(tokens) - n :]:
                matched = n
                while matched < max_match and matched < place and tokens[place - matched - 1] == tokens[-matched - 1]:
                    matched += 1
                return place, matched
    return None


def naive_continuation(tokens: Sequence[int], place: int, count: int) -> list[int]:
    """What `continuation` must answer: each token is that which stands as far behind as `place` does."""
    said = list(tokens)
    distance = len(tokens) - place
    for _ in range(count):
        said.append(said[len(said) - distance])
    return said[len(tokens) :]
