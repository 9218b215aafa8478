"""foreword beside its peers, row by row, in turns.

Question   how many times faster or smaller than each peer, on this machine, on the same file and the same prompts.
Regime     every engine is started anew for every row and round (A B A B) and asked over its own door: HTTP for foreword
           and llama.cpp, in process for OpenVINO and transformers.
Ideal      the targets beside the rows; the machine's limits are measured between them.
Run        make bench-peers, or python -m benchmarks.peers --rows W1,W2 --peers llama.cpp --repeats 3
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.peers import file_row, limits, report
from benchmarks.peers.budget import Budget, left_out
from benchmarks.peers.engine import EngineError
from benchmarks.peers.rows import ROWS
from benchmarks.peers.run import Run, tell
from benchmarks.peers.setup import PEERS, Plan, SetupError
from benchmarks.peers.workloads import Tape
from foreword.bench.corpus import Corpus
from foreword.cli.session import find_model
from foreword.core.errors import CapacityError, ForewordError
from foreword.models.files import open_model_files
from foreword.text.loading import load_text

_TAPE_TOKENS = 200_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up, measure, print; 0 even where a peer is missing, 2 where ours can't run."""
    asked = parse(arguments)
    plan = Plan(
        model=asked.model,
        threads=asked.threads,
        build=asked.build,
        jobs=asked.jobs,
        llama_cpp=asked.llama_cpp,
        foreword=tuple(asked.foreword.split()),
        foreword_flags=tuple(asked.foreword_flags.split()),
    )
    budget = Budget(asked.repeats or (2 if asked.quick else 3), asked.quick)
    try:
        run = Run(plan, budget, asked.peers, asked.json, tape(plan.model), limits.build(plan.build))
        rows = [run.row(name) for name in asked.rows]
    except (ForewordError, SetupError, EngineError, OSError) as fault:
        print(f"bench-peers: {fault}", file=sys.stderr)
        return 2
    tell(budget.told(rows, run.engines))
    if asked.set_up:
        for name, why in run.missing.items():
            tell(f"missing: {name}: {why}")
        return 0
    try:
        for row in rows:
            run.measure(row)
    finally:  # interrupted as well: what was measured is told
        not_run = left_out(rows, run.engines, budget)
        print(report.table(run.found, run.engines[1:]))
        print("\n" + report.remarks(run.found, run.notes, run.missing, run.limits, not_run))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ends the process with a line where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="foreword beside other engines")
    known = [*ROWS, file_row.NAME]
    parser.add_argument("--rows", type=_names("row", known), default=known, help=f"of {','.join(known)}")
    parser.add_argument(
        "--peers", type=_names("peer", PEERS), default=list(PEERS), help=f"of {','.join(PEERS)}; '' none"
    )
    parser.add_argument("--repeats", type=_at_least_one, help="rounds; default 3, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="the whole table in under 25 minutes on two quiet cores")
    parser.add_argument("--set-up", action="store_true", help="set up and say how long the rows would take, no more")
    parser.add_argument("--model", type=find_model, default="smollm2", help="pulled name, or .gguf file, that all read")
    parser.add_argument("--threads", type=_at_least_one, default=2)
    parser.add_argument("--build", type=Path, default=Path("build/peers"), help="where peers are set up")
    parser.add_argument("--jobs", type=_at_least_one, default=2, help="compilers at a time")
    parser.add_argument("--llama-cpp", type=Path, help="folder of a built llama-server, in place of building one")
    parser.add_argument("--foreword", default="foreword", help="command of ours, to compare another checkout's")
    parser.add_argument("--foreword-flags", default="", help="more flags of ours, for `foreword serve`")
    parser.add_argument("--json", type=Path, help="where to write every round")
    return parser.parse_args(arguments)


def tape(model: Path) -> Tape:
    """The prompts' text as this model's tokens, as far as it goes."""
    with open_model_files(model) as files:
        tokenizer, _ = load_text(files)
    corpus, tokens = Corpus(tokenizer), list[int]()
    try:
        while len(tokens) < _TAPE_TOKENS:
            tokens += corpus.take(1000)
    except CapacityError:
        pass  # the tape begins again
    return Tape(tokens)


def _names(what: str, known: Iterable[str]) -> Callable[[str], list[str]]:
    """Parses a list with commas between, of known names."""
    allowed = list(known)

    def parse_names(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"no such {what}: {', '.join(unknown)}; known: {', '.join(allowed)}")
        return list(dict.fromkeys(names))

    return parse_names


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return number


def end_in_order_when_terminated() -> None:
    """Let SIGTERM (a time limit, say) unwind the run, so that no engine outlives it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


if __name__ == "__main__":
    end_in_order_when_terminated()
    sys.exit(main())
