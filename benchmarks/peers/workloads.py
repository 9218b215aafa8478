"""Token-exact prompts of every row: English that no prompt before it held, so that nothing is warm by chance."""

from collections.abc import Callable, Sequence

Prompt = list[int]


class Workloads:
    """Hands out prompts; `take` gives the next tokens of a text without end, or raises when there is none left."""

    def __init__(self, take: Callable[[int], Prompt]) -> None:
        self._take = take

    def alone(self, num_tokens: int, count: int = 1) -> list[Prompt]:
        """Prompts that share nothing."""
        return [self._take(num_tokens) for _ in range(count)]

    def over_one_prefix(self, prefix_len: int, own_len: int, count: int) -> list[Prompt]:
        """Prompts that begin alike."""
        prefix = self._take(prefix_len)
        return [prefix + self._take(own_len) for _ in range(count)]

    def rounds_over_prefixes(self, prefix_len: int, own_len: int, prefixes: int, rounds: int) -> list[list[Prompt]]:
        """In each round one prompt for each prefix, in the same order."""
        shared = self.alone(prefix_len, prefixes)
        return [[prefix + self._take(own_len) for prefix in shared] for _ in range(rounds)]


class Tape:
    """Runs of a list of tokens, from the beginning again once it is used up, each time a little later.

    Engines are started anew for every measurement, so a run that comes again is as unknown to them as any.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise ValueError("tokens: expected at least one")
        self._tokens = list(tokens)
        self._position = 0

    def take(self, num_tokens: int) -> Prompt:
        """The next `num_tokens` tokens."""
        taken: Prompt = []
        while len(taken) < num_tokens:
            if self._position >= len(self._tokens):
                self._position = 1 + len(taken) % 7 if len(self._tokens) > 8 else 0
            part = self._tokens[self._position : self._position + num_tokens - len(taken)]
            self._position += len(part)
            taken += part
        return taken
