"""One claim, what is expected of it, what was measured, and whether that holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct


class Bar(Struct, frozen=True):
    """One bar of a claim's picture; `value` is in the picture's unit."""

    name: str
    value: float
    shown: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of the table. `expected` and `measured` are for people; `ok` was decided by numbers."""

    claim: str
    expected: str
    measured: str
    ok: bool
    bars: Sequence[Bar] = field(default=(), repr=False)
    note: str = ""  # how it was measured, where that is not plain

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return {"claim": self.claim, "expected": self.expected, "measured": self.measured, "ok": self.ok}
