"""Which tokens an answer may consist of, as the engine sees it: masks over ids, and nothing about text."""

from collections.abc import Iterable
from typing import Protocol

from foreword.core.types import TokenId


class ConstraintState(Protocol):
    """Where one sequence stands in a constraint: a function of the tokens it has generated, and of nothing else."""

    @property
    def allowed_tokens(self) -> bytes:
        """Which tokens may come next: bit `i % 8` of byte `i // 8` stands for token `i`; ids beyond the end may not.

        An end token is allowed exactly where the answer may end.
        """

    @property
    def is_finished(self) -> bool:
        """True once nothing can follow but the end."""

    def accept(self, token_id: TokenId) -> None:
        """Go on with a token that is allowed.

        Raises:
            ConstraintError: the token is not allowed, or what may follow takes more work than is granted. The state
                can't be used any more.
        """


class TokenConstraint(Protocol):
    """A compiled constraint. Immutable: any number of sequences in any threads may start from it."""

    def start(self, token_ids: Iterable[TokenId] = ()) -> ConstraintState:
        """The state of a sequence that has generated `token_ids`.

        Raises:
            ConstraintError: as `accept`.
        """
