"""Rows measured in turns, and what the numbers say: medians, spreads, ratios within a round."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.engine import Engine, EngineError
from benchmarks.peers.rows import AskedRow, Row, Values
from benchmarks.peers.setup import OURS, SetupError, Start
from benchmarks.peers.workloads import Workloads


@dataclass(slots=True)
class Measured:
    """Of one row: the values of each engine, a list with one entry a round (None where it has none), and the faults.

    `seconds` are those of the rounds that each engine ran, its start included.
    """

    row: Row
    values: dict[str, list[Values | None]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a rate is a share of: the bandwidth, measured when asked, in bytes a second; and the bytes of a token."""

    read_bytes_s: Callable[[], float]
    bytes_a_token: int

    def share(self, rate: str, run: Callable[[], Values]) -> tuple[Values, float]:
        """What `run` gives, and the bytes a second of its `rate` over the better bandwidth of just before and after."""
        before = self.read_bytes_s()
        values = run()
        return values, values[rate] * self.bytes_a_token / max(before, self.read_bytes_s())


def measure(
    row: AskedRow,
    starts: Mapping[str, Start],
    rounds: Mapping[str, int],
    workloads: Workloads,
    memory: Memory,
    tell: Callable[[str], None],
) -> Measured:
    """Run a row on every engine in turn (A B A B), as many rounds of each as `rounds` says; the first rounds have all.

    Each engine is started anew for each round and asked the same prompts in it.
    """
    measured = Measured(row, {name: [] for name in starts}, seconds={name: [] for name in starts})
    for number in range(max((rounds[name] for name in starts), default=0)):
        ask = row.prepare(workloads)
        for name, start in starts.items():
            if number >= rounds[name]:
                measured.values[name].append(None)
                continue
            tell(f"{row.name} · {name} · {number + 1} of {rounds[name]}")
            began = time.perf_counter()
            try:
                measured.values[name].append(_values(row, start, ask, memory))
            except (EngineError, SetupError, OSError) as fault:
                measured.values[name].append(None)
                measured.faults[name] = str(fault)
            measured.seconds[name].append(time.perf_counter() - began)
    return measured


def asked(start: Start, ask: Callable[[Engine], Values]) -> Values:
    """The values of an engine started for them alone."""
    engine = start()
    try:
        return ask(engine)
    finally:
        engine.close()


def _values(row: Row, start: Start, ask: Callable[[Engine], Values], memory: Memory) -> Values:
    if row.share is None:
        return asked(start, ask)
    name, rate = row.share
    values, share = memory.share(rate, lambda: asked(start, ask))
    return values | {name: share}


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
