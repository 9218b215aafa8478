"""Rows measured in turns, and what the numbers say: medians, spreads, ratios within a round."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.engine import Engine, EngineError
from benchmarks.peers.rows import Row, Values
from benchmarks.peers.workloads import Workloads

OURS = "foreword"


@dataclass(slots=True)
class Measured:
    """Of one row: the values of each engine, a list with one entry a round (None where it failed), and the faults."""

    row: Row
    values: dict[str, list[Values | None]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


def measure(
    row: Row,
    starts: Mapping[str, Callable[[], Engine]],
    workloads: Workloads,
    repeats: int,
    tell: Callable[[str], None],
) -> Measured:
    """Run a row `repeats` times on every engine in turn (A B A B), each started anew and asked the same prompts."""
    measured = Measured(row, {name: [] for name in starts})
    for number in range(repeats):
        ask = row.prepare(workloads)
        for name, start in starts.items():
            tell(f"{row.name} · {name} · {number + 1} of {repeats}")
            try:
                engine = start()
                try:
                    values: Values | None = ask(engine)
                finally:
                    engine.close()
            except (EngineError, OSError) as fault:
                values, measured.faults[name] = None, str(fault)
            measured.values[name].append(values)
    return measured


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and what it lies between."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None of nothing."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


def spread(measured: Measured, engine: str, value: str) -> Spread | None:
    """One value of one engine over the rounds in which it came."""
    found = [values[value] for values in measured.values[engine] if values is not None and value in values]
    return Spread.of(found)


def ratio(measured: Measured, peer: str, value: str) -> Spread | None:
    """How many times better ours is, round by round, so that a drift of the machine falls out. None: no round has both.

    A peer's 0 where less is better (no difference of logprobs) can't be beaten: there is no ratio then.
    """
    ratios = []
    for ours, theirs in zip(measured.values[OURS], measured.values[peer], strict=True):
        if ours is None or theirs is None or value not in ours or value not in theirs:
            continue
        over, under = (ours, theirs) if measured.row.larger_is_better[value] else (theirs, ours)
        if under[value] > 0:
            ratios.append(over[value] / under[value])
    return Spread.of(ratios)


def verdict(measured: Measured, value: str) -> str:
    """Every target of a value: reached, short, or not measured."""
    parts = []
    for peer, wanted in measured.row.targets.get(value, {}).items():
        found = ratio(measured, peer, value) if peer in measured.values else None
        parts.append(f"{wanted:g} × {peer}: {_word(None if found is None else found.median >= wanted)}")
    limit = measured.row.limits.get(value)
    if limit is not None:
        ours = spread(measured, OURS, value)
        if measured.row.larger_is_better[value]:
            parts.append(f"≥ {limit:.4g}: {_word(None if ours is None else ours.median >= limit)}")
        else:
            parts.append(f"≤ {limit:.4g}: {_word(None if ours is None else ours.median <= limit)}")
    return ", ".join(parts)


def _word(reached: bool | None) -> str:
    return "not measured" if reached is None else "reached" if reached else "short"
