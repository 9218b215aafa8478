"""What a provider would say of a prompt, decided before it runs, and made true when its answer begins."""

from msgspec import Struct
from msgspec.structs import replace

from foreword.server.account import Account
from foreword.server.cache_policy.ledger import Ledger, Write


class Outcome(Struct, frozen=True, kw_only=True):
    """Tokens read and written, by the provider's rules, and what that does to its entries."""

    read: int = 0
    written: int = 0
    written_1h: int = 0
    renewed: tuple[bytes, ...] = ()
    writes: tuple[Write, ...] = ()


class EmulatedPlan(Struct):
    """A prompt's account as the provider would tell it. Lifetimes count from `started`, when its request came."""

    outcome: Outcome
    ledger: Ledger
    started: float
    _has_begun: bool = False

    def told(self, account: Account) -> Account:
        """The provider's counts of the prompt; what was generated, and what the response cache did, as it is."""
        outcome = self.outcome
        return replace(account, read=outcome.read, written=outcome.written, written_1h=outcome.written_1h)

    def begun(self) -> None:
        """What is written may be read from now on."""
        if not self._has_begun:
            self._has_begun = True
            self.ledger.store(self.outcome.writes, self.started)
