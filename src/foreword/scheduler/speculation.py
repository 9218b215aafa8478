"""Which tokens a sequence is drafted, and when drafting pays.

A draft is a guess of the next tokens, computed in the step that computes the last known one. Whoever draws decides:
the draw of a position is a function of its logits, seed and position alone, so a drawn token equal to the draft is
the very token that plain decoding would have drawn, and its K and V are there already.

    one token a step          read all weights, compute 1
    one and k drafts          read all weights, compute 1 + k: worth it while computing is cheaper than reading

So a draft is worth `TOKEN_COST` of a step, and less the fuller a step is. How likely one comes true is learned for
each sequence, by how many tokens matched before it, and learned from guesses that were not computed too: whether they
would have come true is known one step later, for nothing. A sequence that does not repeat itself is not drafted for.
"""

from typing import Protocol

from foreword.core.sequence import Sequence
from foreword.core.types import SequenceId, TokenId
from foreword.scheduler.prompt_lookup import MAX_MATCH, PromptLookup, continuation

MAX_DRAFTS = 8
"""Most drafts of a sequence in a step: no more than a block holds, at any block size."""

TOKEN_COST = 0.18
"""What one more token adds to the time of a step of one token, measured (docs/performance.md)."""

LEARNING_RATE = 0.125
_FIRST_CHANCES = (0.1, 0.25, 0.5, 0.7, 0.7, 0.7, 0.7, 0.8)
"""How likely a guess comes true before anything is known of a sequence, by the tokens that match before it, 1 to 8."""


class Speculation(Protocol):
    """Guesses what sequences say next. What it guesses decides when tokens come and never which."""

    def propose(self, sequence: Sequence, most: int, num_tokens: int) -> list[TokenId]:
        """At most `most` drafts for a sequence in a step of `num_tokens` tokens so far."""
        ...

    def learn(self, sequence_id: SequenceId, drawn: list[TokenId]) -> None:
        """Tokens that the sequence took after the last proposal."""
        ...

    def forget(self, sequence_id: SequenceId) -> None:
        """The sequence has ended."""
        ...


class NoSpeculation:
    """Nothing is drafted."""

    def propose(self, sequence: Sequence, most: int, num_tokens: int) -> list[TokenId]:
        """See `Speculation.propose`."""
        return []

    def learn(self, sequence_id: SequenceId, drawn: list[TokenId]) -> None:
        """See `Speculation.learn`."""

    def forget(self, sequence_id: SequenceId) -> None:
        """See `Speculation.forget`."""


class PromptLookupSpeculation:
    """Drafts what followed where a sequence last said the same. What one sequence says tells nothing of another."""

    def __init__(self) -> None:
        self._drafters: dict[SequenceId, _Drafter] = {}

    def propose(self, sequence: Sequence, most: int, num_tokens: int) -> list[TokenId]:
        """See `Speculation.propose`."""
        drafter = self._drafters.get(sequence.sequence_id)
        if drafter is None:
            drafter = self._drafters[sequence.sequence_id] = _Drafter()
        return drafter.propose(sequence.token_ids, most, num_tokens)

    def learn(self, sequence_id: SequenceId, drawn: list[TokenId]) -> None:
        """See `Speculation.learn`."""
        if sequence_id in self._drafters:
            self._drafters[sequence_id].learn(drawn)

    def forget(self, sequence_id: SequenceId) -> None:
        """See `Speculation.forget`."""
        self._drafters.pop(sequence_id, None)


class _Drafter:
    """Of one sequence: where it said the same, its last guess, and how often such guesses came true."""

    def __init__(self) -> None:
        self._lookup = PromptLookup()
        self._chances = list(_FIRST_CHANCES)
        self._guess: list[TokenId] = []
        self._matched = 0

    def propose(self, tokens: list[TokenId], most: int, num_tokens: int) -> list[TokenId]:
        found = self._lookup.find(tokens)
        self._guess = []
        if found is None:
            return []
        place, self._matched = found
        self._guess = continuation(tokens, place, MAX_DRAFTS)
        chance, count = 1.0, 0
        for after in range(most):
            chance *= self._chances[self._level(after)]
            load = TOKEN_COST * (num_tokens + after)
            if chance <= load / (1 + load):
                break
            count += 1
        return self._guess[:count]

    def learn(self, drawn: list[TokenId]) -> None:
        for after, (guessed, token) in enumerate(zip(self._guess, drawn, strict=False)):
            level = self._level(after)
            came_true = guessed == token
            self._chances[level] += LEARNING_RATE * (came_true - self._chances[level])
            if not came_true:
                break
        self._guess = []

    def _level(self, after: int) -> int:
        """Index into chances of the guess `after` others, all true."""
        return min(self._matched + after, MAX_MATCH) - 1
