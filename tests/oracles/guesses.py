"""Drafts for tests: as many as are allowed, so that every way in which a draft can come true or not is gone through."""

import random

from foreword.core.sequence import Sequence
from foreword.core.types import SequenceId, TokenId
from tests.oracles.simulated_model import SimulatedRunner


class HalfRightGuesses:
    """Knows what a simulated model says next; is right for a while, then wrong, by turns of its own."""

    def __init__(self, runner: SimulatedRunner, seed: int = 0) -> None:
        self._runner = runner
        self._random = random.Random(seed)

    def propose(self, sequence: Sequence, most: int, num_tokens: int) -> list[TokenId]:
        count = self._random.randint(0, most)
        right = self._random.randint(0, count)
        drafts = self._runner.continuation(sequence.sequence_id, count)
        return [token if i != right else self._runner.other(token) for i, token in enumerate(drafts)]

    def learn(self, sequence_id: SequenceId, drawn: list[TokenId]) -> None:
        assert drawn

    def forget(self, sequence_id: SequenceId) -> None:
        pass


class EagerGuesses:
    """Always drafts all it may: the tokens it is told the sequence will say, every fifth of them wrong, or any."""

    def __init__(self, vocab_size: int, truth: dict[tuple[int, int], list[int]] | None = None) -> None:
        self._vocab_size = vocab_size
        self._truth = truth or {}  # by prompt length and seed

    def propose(self, sequence: Sequence, most: int, num_tokens: int) -> list[TokenId]:
        told = self._truth.get((sequence.prompt_len, sequence.seed), [])
        first = sequence.num_output_tokens
        drafts = []
        for place in range(first, first + most):
            token = told[place] if place < len(told) else place
            drafts.append(TokenId((token + (place % 5 == 4)) % self._vocab_size))
        return drafts

    def learn(self, sequence_id: SequenceId, drawn: list[TokenId]) -> None:
        assert drawn

    def forget(self, sequence_id: SequenceId) -> None:
        pass
