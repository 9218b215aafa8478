"""How often each engine runs a row, and how long all of it takes: said before anything is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.rows import Row
from benchmarks.peers.setup import OURS

_LONG_S = 100.0  # of a round: once is enough in a hurry
_TOO_LONG_S = 60.0  # for an engine that nothing is held to
_LIMITS_S = 2.0  # the machine's limits after each row, or the bandwidth around each start


@dataclass(frozen=True, slots=True)
class Budget:
    """`repeats` rounds of everything; in a hurry one where it is long or where no target names the engine, or none."""

    repeats: int
    quick: bool = False

    def rounds(self, row: Row, engine: str) -> int:
        """0: the engine does not run the row."""
        seconds = row.seconds.get(engine)
        if seconds is None:
            return 0
        if not self.quick:
            return self.repeats
        if engine == OURS or any(engine in peers for peers in row.targets.values()):
            return self.repeats if seconds <= _LONG_S else 1
        return 1 if seconds <= _TOO_LONG_S else 0

    def why_not(self, row: Row, engine: str) -> str:
        """Why an engine does not run a row."""
        if engine in row.seconds:
            return f"a round takes about {row.seconds[engine]:.0f} s, and no target names it (--quick)"
        return row.left_out.get(engine, "not known to this row")

    def seconds(self, row: Row, engines: Sequence[str]) -> float:
        """About how long a row takes on two quiet cores."""
        each = [self.rounds(row, engine) * row.seconds.get(engine, 0.0) for engine in engines]
        return sum(each) + _LIMITS_S

    def told(self, rows: Sequence[Row], engines: Sequence[str]) -> str:
        """A line a row, and the sum."""
        lines = []
        for row in rows:
            parts = [
                f"{engine} {self.rounds(row, engine)} × {row.seconds[engine]:.0f} s"
                for engine in engines
                if self.rounds(row, engine)
            ]
            lines.append(f"{row.name}: about {_minutes(self.seconds(row, engines))}: {', '.join(parts)}")
        total = sum(self.seconds(row, engines) for row in rows)
        return "\n".join([*lines, f"all: about {_minutes(total)} on two quiet cores"])


def left_out(rows: Sequence[Row], engines: Sequence[str], budget: Budget) -> Mapping[str, str]:
    """By `row · engine`, why it is not measured."""
    return {
        f"{row.name} · {engine}": budget.why_not(row, engine)
        for row in rows
        for engine in engines
        if not budget.rounds(row, engine)
    }


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
