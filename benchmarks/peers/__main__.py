"""foreword beside its peers, row by row, in turns.

Question   how many times faster or smaller than each peer, on this machine, on the same file and the same prompts.
Regime     every engine is started anew for every row and round (A B A B) and asked over its own door: HTTP for foreword
           and llama.cpp, in process for OpenVINO and transformers.
Ideal      the targets beside the rows; the machine's limits are measured between them.
Run        make bench-peers, or python -m benchmarks.peers --rows W1,W2 --peers llama.cpp --repeats 3
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.peers import limits, report
from benchmarks.peers.comparison import OURS, Measured, measure
from benchmarks.peers.engine import EngineError
from benchmarks.peers.rows import ROWS
from benchmarks.peers.setup import PEERS, Plan, SetupError, foreword, set_up
from benchmarks.peers.workloads import Tape, Workloads
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
    )
    try:
        tokens = tape(plan.model)
        program = limits.build(plan.build)
        ours = foreword(plan)
        ours().close()
    except (ForewordError, SetupError, EngineError, OSError) as fault:
        print(f"bench-peers: {fault}", file=sys.stderr)
        return 2
    peers, missing = set_up(plan, asked.peers, tell)
    starts = {OURS: ours, **peers}
    notes = {}
    for name, start in starts.items():
        engine = start()
        notes[name] = engine.notes
        engine.close()
    workloads, found, seen = Workloads(tokens.take), list[Measured](), [limits.measure(program, plan.threads)]
    for row in asked.rows:
        found.append(measure(ROWS[row], starts, workloads, asked.repeats, tell))
        seen.append(limits.measure(program, plan.threads))
        if asked.json is not None:  # after each row: a run cut short keeps what it has
            whole = report.document(found, notes, missing, seen, machine(plan, asked.repeats))
            asked.json.write_text(json.dumps(whole, indent=1) + "\n")
    print(report.table(found, list(peers)))
    print("\n" + report.remarks(found, notes, missing, seen))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ends the process with a line where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="foreword beside other engines")
    parser.add_argument("--rows", type=_names("row", ROWS), default=list(ROWS), help=f"of {','.join(ROWS)}")
    parser.add_argument(
        "--peers", type=_names("peer", PEERS), default=list(PEERS), help=f"of {','.join(PEERS)}; '' none"
    )
    parser.add_argument("--repeats", type=_at_least_one, default=3)
    parser.add_argument("--model", type=find_model, default="smollm2", help="pulled name, or .gguf file, that all read")
    parser.add_argument("--threads", type=_at_least_one, default=2)
    parser.add_argument("--build", type=Path, default=Path("build/peers"), help="where peers are set up")
    parser.add_argument("--jobs", type=_at_least_one, default=2, help="compilers at a time")
    parser.add_argument("--llama-cpp", type=Path, help="folder of a built llama-server, in place of building one")
    parser.add_argument("--foreword", default="foreword", help="command of ours, to compare another checkout's")
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


def machine(plan: Plan, repeats: int) -> dict[str, object]:
    """What the numbers belong to."""
    cpus = Path("/proc/cpuinfo")
    names = [line for line in cpus.read_text().splitlines() if line.startswith("model name")] if cpus.exists() else []
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": plan.threads,
        "model": plan.model.name,
        "repeats": repeats,
    }


def tell(what: str) -> None:
    """Progress, beside the table."""
    print(what, file=sys.stderr, flush=True)


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
