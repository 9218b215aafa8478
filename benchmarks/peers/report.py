"""The comparison as a table for people and as JSON for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.comparison import Measured, Spread, ratio, spread, verdict
from benchmarks.peers.setup import OURS


def table(measured: Sequence[Measured], peers: Sequence[str]) -> str:
    """A line a value in Markdown: medians with least and most, and how many times better ours is, round by round."""
    heads = ["row", "value", OURS]
    for peer in peers:
        heads += [peer, f"times {peer}"]
    lines = [[*heads, "target"], ["---"] * (len(heads) + 1)]
    for one in measured:
        for value in one.row.larger_is_better:
            cells = [one.row.name, value, _shown(spread(one, OURS, value))]
            for peer in peers:
                known = peer in one.values
                cells += [_shown(spread(one, peer, value)), _shown(ratio(one, peer, value))] if known else ["–", "–"]
            lines.append([*cells, verdict(one, value)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def remarks(
    measured: Sequence[Measured],
    notes: Mapping[str, Mapping[str, str]],
    missing: Mapping[str, str],
    limits: Sequence[Mapping[str, float]],
    left_out: Mapping[str, str],
) -> str:
    """What the table needs beside it: versions, flags, the machine, who is missing and what failed."""
    lines = [f"{name}: {said['version']}; flags: {said['flags']}" for name, said in notes.items()]
    for what in limits[0] if limits else ():
        lines.append(f"this machine, measured between rows: {what} {_shown(Spread.of([one[what] for one in limits]))}")
    lines += [f"missing: {name}: {why}" for name, why in missing.items()]
    lines += [f"not run: {what}: {why}" for what, why in left_out.items()]
    for one in measured:
        if "llama.cpp" in one.values:
            lines.append(f"{one.row.name}: llama.cpp's slots: {' '.join(one.row.llama_flags)}")
    lines += [f"failed: {one.row.name} · {name}: {fault}" for one in measured for name, fault in one.faults.items()]
    return "\n".join(lines)


def document(
    measured: Sequence[Measured],
    notes: Mapping[str, Mapping[str, str]],
    missing: Mapping[str, str],
    limits: Sequence[Mapping[str, float]],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything measured, round by round, so that any other table can be made of it."""
    return {
        "machine": dict(machine),
        "engines": {name: dict(said) for name, said in notes.items()},
        "missing": dict(missing),
        "limits": [dict(one) for one in limits],
        "rows": [
            {
                "row": one.row.name,
                "what": one.row.what,
                "rounds": one.values,
                "seconds": one.seconds,
                "llama.cpp": list(one.row.llama_flags),
                "faults": one.faults,
            }
            for one in measured
        ],
    }


def _shown(found: Spread | None) -> str:
    if found is None:
        return "–"
    return f"{_number(found.median)} ({_number(found.least)}–{_number(found.most)})"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
