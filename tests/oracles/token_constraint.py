"""A constraint over integers, with no text in it: after generated tokens of sum `s`, `rule(s)` may come."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from foreword.core.errors import ConstraintError
from foreword.core.types import TokenId

Rule = Callable[[int], Collection[int]]


def packed(tokens: Iterable[int]) -> bytes:
    """The mask of some tokens."""
    bits = sum(1 << token for token in set(tokens))
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


@dataclass
class SumState:
    """Where a sequence stands: how many tokens, of what sum."""

    constraint: "SumConstraint"
    num_tokens: int = 0
    total: int = 0
    has_ended: bool = False

    @property
    def allowed_ids(self) -> set[int]:
        if self.is_finished:
            return set(self.constraint.end_tokens)
        ends = self.constraint.end_tokens if self.num_tokens >= self.constraint.ends_from else ()
        return {*self.constraint.rule(self.total), *ends}

    @property
    def allowed_tokens(self) -> bytes:
        return packed(self.allowed_ids)

    @property
    def is_finished(self) -> bool:
        return self.has_ended or self.num_tokens >= self.constraint.length

    def accept(self, token_id: TokenId) -> None:
        if token_id not in self.allowed_ids:
            raise AssertionError(f"{token_id} was not allowed")
        self.has_ended = token_id in self.constraint.end_tokens
        self.num_tokens += 1
        self.total += token_id
        if self.num_tokens == self.constraint.fails_after:
            raise ConstraintError("too complex")


@dataclass
class SumConstraint:
    """Finished after `length` tokens; may end from `ends_from` on; can't go on after `fails_after`."""

    rule: Rule
    length: int
    end_tokens: frozenset[int] = frozenset()
    ends_from: int = 1 << 30
    fails_after: int = -1
    starts: list[int] = field(default_factory=list)  # how many tokens each state started with

    def start(self, token_ids: Iterable[TokenId] = ()) -> SumState:
        tokens = list(token_ids)
        self.starts.append(len(tokens))
        state = SumState(self)
        for token in tokens:
            state.accept(token)
        return state
