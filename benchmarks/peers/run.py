"""One run: engines set up, rows measured on them, and what was found so far kept on disk."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import file_row, limits, model_files, report
from benchmarks.peers.budget import Budget
from benchmarks.peers.comparison import Measured, Memory, measure
from benchmarks.peers.rows import ROWS, AskedRow, Row
from benchmarks.peers.setup import OURS, Plan, Start, build_llama_cpp, foreword, set_up, start_of
from benchmarks.peers.workloads import Tape, Workloads


class Run:
    """`engines` are those that start, ours first; `missing` says why of the other peers.

    Raises:
        SetupError: ours can't be run, or the machine's limits can't be measured.
        EngineError: ours does not start.
    """

    def __init__(
        self, plan: Plan, budget: Budget, peers: Sequence[str], document: Path | None, tape: Tape, program: Path
    ) -> None:
        self._plan = plan
        self._budget = budget
        self._document = document
        self._workloads = Workloads(tape.take)
        self._program = program
        self._files: Mapping[str, Path] = {}
        ours = foreword(plan)()
        self.notes = {OURS: ours.notes}
        ours.close()
        ready, self.missing = set_up(plan, peers, tell)
        self.notes |= ready
        self.engines = list(self.notes)
        self.found: list[Measured] = []
        self.limits = [limits.measure(program, plan.threads)]

    def row(self, name: str) -> Row:
        """A row by its name, with the files made that it needs.

        Raises:
            SetupError: a file can't be made.
        """
        if name != file_row.NAME:
            return ROWS[name]
        self._files = model_files.make(self._plan.build / "models", self._plan.model, self._quantizer(), tell)
        return file_row.row(self._files)

    def measure(self, row: Row) -> None:
        """Measure a row, and the machine's limits after it; a run cut short keeps what it has."""
        rounds = {name: self._budget.rounds(row, name) for name in self.engines}
        names = [name for name in self.engines if rounds[name]]
        if isinstance(row, AskedRow):
            starts = self._starts(names, row, self._plan.model)
            found = measure(row, starts, rounds, self._workloads, self._memory(self._plan.model), tell)
        else:
            found = file_row.measure(
                self._files,
                lambda path: self._starts(names, row, path),
                rounds,
                self._workloads,
                self._memory,
                tell,
            )
        self.found.append(found)
        self.limits.append(limits.measure(self._program, self._plan.threads))
        if self._document is not None:
            whole = report.document(self.found, self.notes, self.missing, self.limits, self._machine())
            self._document.parent.mkdir(parents=True, exist_ok=True)
            self._document.write_text(json.dumps(whole, indent=1) + "\n")

    def _starts(self, names: Sequence[str], row: Row, model: Path) -> dict[str, Start]:
        plan = replace(self._plan, model=model, llama_flags=row.llama_flags)
        return {name: start_of(name, plan) for name in names}

    def _memory(self, model: Path) -> Memory:
        threads = self._plan.threads
        return Memory(lambda: limits.read_bytes_s(self._program, threads), model_files.bytes_a_token(model))

    def _quantizer(self) -> Path | None:
        """llama.cpp's quantizer, where llama.cpp is."""
        if "llama.cpp" not in self.engines:
            return None
        found = (self._plan.llama_cpp or build_llama_cpp(self._plan)) / "llama-quantize"
        if not os.access(found, os.X_OK):
            self.missing["llama-quantize"] = f"not in {found.parent}: the row {file_row.NAME} has fewer files"
            return None
        return found

    def _machine(self) -> dict[str, object]:
        """What the numbers belong to."""
        cpus = Path("/proc/cpuinfo")
        lines = cpus.read_text().splitlines() if cpus.exists() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return {
            "processor": names[0] if names else platform.processor(),
            "cores": os.cpu_count(),
            "threads": self._plan.threads,
            "model": self._plan.model.name,
            "repeats": self._budget.repeats,
            "quick": self._budget.quick,
        }


def tell(what: str) -> None:
    """Progress, beside the table."""
    print(what, file=sys.stderr, flush=True)
