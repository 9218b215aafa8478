"""The row `files`: decoding from files of other types and of another size, each beside the bandwidth."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers.comparison import Measured, Memory, asked
from benchmarks.peers.engine import Engine, EngineError
from benchmarks.peers.model_files import F32, OTHER_TYPES, PULLED, RANDOM_7B, SMALL_VOCABULARY
from benchmarks.peers.rows import Measure, Row, Values
from benchmarks.peers.setup import SetupError, Start
from benchmarks.peers.workloads import Workloads

NAME = "files"
SECONDS = {"foreword": 45.0, "llama.cpp": 60.0}
LEFT_OUT = {name: "it would compute with the dequantised weights" for name in ("openvino", "transformers")}
_PROMPT, _TOKENS = 64, 256
_LARGE_PROMPT, _LARGE_TOKENS = 16, 32  # of the 7B shape, of which a token takes fifty times as long
_RATE = "tok/s"


def row(kinds: Mapping[str, Path]) -> Row:
    """The row of the files that there are."""
    values, limits = dict[str, bool](), dict[str, float]()
    for kind in kinds:
        values |= {f"{kind}: tok/s": True, f"{kind}: of bandwidth": True}
        if kind in OTHER_TYPES:
            values[f"{kind}: of what its bytes predict"] = True
            limits[f"{kind}: of what its bytes predict"] = 0.85
    limits |= {f"{kind}: of bandwidth": least for kind, least in ((F32, 0.85), (RANDOM_7B, 0.75)) if kind in kinds}
    return Row(NAME, "decode, 64 + 256 tokens (7B: 16 + 32)", values, {}, limits, SECONDS, LEFT_OUT)


def measure(
    files: Mapping[str, Path],
    starts_on: Callable[[Path], Mapping[str, Start]],
    rounds: Mapping[str, int],
    workloads: Workloads,
    memory_of: Callable[[Path], Memory],
    tell: Callable[[str], None],
) -> Measured:
    """Every file on every engine in turn; a file that an engine fails on is named, and costs it no other value."""
    starts = {kind: starts_on(path) for kind, path in files.items()}
    memories = {kind: memory_of(path) for kind, path in files.items()}
    names = list(starts[PULLED])
    measured = Measured(row(files), {name: [] for name in names}, seconds={name: [] for name in names})
    for number in range(max(rounds[name] for name in names)):
        asks = {kind: _ask(kind, workloads) for kind in files}
        found: dict[str, Values] = {name: {} for name in names}
        spent = dict.fromkeys(names, 0.0)
        for kind in files:
            for name in names:
                if number >= rounds[name]:
                    continue
                began = time.perf_counter()
                tell(f"{NAME} · {kind} · {name} · {number + 1} of {rounds[name]}")
                try:
                    found[name] |= _of_file(kind, starts[kind][name], asks[kind], memories[kind])
                except (EngineError, SetupError, OSError) as fault:
                    measured.faults[name] = f"{kind}: {fault}"
                spent[name] += time.perf_counter() - began
        for name in names:
            if number < rounds[name]:
                measured.seconds[name].append(spent[name])
            measured.values[name].append(_with_predictions(found[name], memories))
    return measured


def _of_file(kind: str, start: Start, ask: Callable[[Engine], Values], memory: Memory) -> Values:
    values, share = memory.share(_RATE, lambda: asked(start, ask))
    return {f"{kind}: tok/s": values[_RATE], f"{kind}: of bandwidth": share}


def _with_predictions(values: Values, memories: Mapping[str, Memory]) -> Values | None:
    """What was measured, and each rate over the one that the bytes of the file as pulled predict for it."""
    plain = values.get(f"{PULLED}: tok/s")
    predicted = {}
    for kind in OTHER_TYPES:
        if plain is not None and f"{kind}: tok/s" in values:
            bytes_s = values[f"{kind}: tok/s"] * memories[kind].bytes_a_token
            predicted[f"{kind}: of what its bytes predict"] = bytes_s / (plain * memories[PULLED].bytes_a_token)
    return values | predicted or None


def _ask(kind: str, workloads: Workloads) -> Measure:
    large = kind == RANDOM_7B
    (prompt,) = workloads.alone(_LARGE_PROMPT if large else _PROMPT)
    known = [token % SMALL_VOCABULARY for token in prompt]
    return lambda engine: {_RATE: engine.ask(known, _LARGE_TOKENS if large else _TOKENS).decode_tok_s}
