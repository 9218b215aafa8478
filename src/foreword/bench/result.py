"""What a row reports."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import asdict

Metrics = Mapping[str, object]
"""Measured values by name; a name ends in its unit."""


class Result(Struct, frozen=True):
    """One row: what was measured, on which model, with how many threads."""

    row: str
    model: str
    threads: int
    metrics: Metrics

    def as_json(self) -> dict[str, object]:
        """The row for machines."""
        return asdict(self)
