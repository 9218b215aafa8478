"""How the account of a prompt is told: as the engine counts, or as a provider would."""

from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from foreword.server.account import Account


class CachePlan(Protocol):
    """What is known of a prompt's caching before it runs."""

    def told(self, account: Account) -> Account:
        """The account as the answer gives it."""
        ...

    def begun(self) -> None:
        """The answer has begun: what the prompt writes may be read from now on."""
        ...


class EnginePlan(Struct, frozen=True):
    """The engine's own account. Of what is written, the part up to `one_hour_end` was asked to stay an hour."""

    one_hour_end: int = 0

    def told(self, account: Account) -> Account:
        """The same counts, with what was written split by its lifetime."""
        return replace(account, written_1h=max(0, min(account.written, self.one_hour_end - account.read)))

    def begun(self) -> None:
        """The engine publishes what it stores by itself."""


AS_COUNTED = EnginePlan()
"""The engine's own account, nothing marked."""
