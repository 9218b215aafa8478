"""Do the kernels still take the instructions they took?

Question   instructions of each kernel case (kernels.cpp), one call on one thread, beside those kept in counts.json.
Regime     counted by `valgrind --tool=cachegrind`: two calls less one, so that set-up falls out. The same on every run
           of one binary; another compiler counts otherwise, so counts are kept by compiler and instruction set.
Ideal      within 3 % of what is kept. More is a slower kernel until shown otherwise; less is to be kept with --keep.
Run        make bench-guard, or python -m benchmarks.guard [--keep] [--case NAME]
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TOLERANCE = 0.03
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
COUNTS = _HERE / "counts.json"
_REFERENCES = re.compile(r"I\s+refs:\s+([\d,]+)")


class GuardError(Exception):
    """Nothing could be counted; the message says why."""


def main(arguments: Sequence[str] | None = None, kept_in: Path = COUNTS) -> int:
    """Count and compare: 0 all within the tolerance, 1 some case takes more or less, 2 nothing could be counted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description="instructions of the kernels")
    parser.add_argument("--keep", action="store_true", help="keep what is counted as what is right")
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    parser.add_argument("--program", type=Path, help="a built kernels program, in place of building it")
    parser.add_argument("--valgrind", default="valgrind")
    asked = parser.parse_args(arguments)
    try:
        if shutil.which(asked.valgrind) is None:
            raise GuardError(f"{asked.valgrind}: not found; it counts the instructions")
        program = asked.program or build()
        counts = {name: count(asked.valgrind, program, name) for name in asked.case or cases(program)}
    except (GuardError, OSError, subprocess.TimeoutExpired) as fault:
        print(f"bench-guard: {fault}", file=sys.stderr)
        return 2
    kept: dict[str, dict[str, int]] = json.loads(kept_in.read_text()) if kept_in.exists() else {}
    of = compiler()
    lines, is_well = compare(counts, kept.get(of, {}))
    print(f"instructions of one call, {of}")
    print("\n".join(lines))
    if asked.keep:
        kept[of] = kept.get(of, {}) | counts
        kept_in.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        return 0
    return 0 if is_well else 1


def compare(counts: Mapping[str, int], kept: Mapping[str, int]) -> tuple[list[str], bool]:
    """A line a case, and whether none is off by more than the tolerance. A case not kept yet is off."""
    lines, is_well = [], True
    for name, now in counts.items():
        before = kept.get(name)
        if before is None:
            lines.append(f"{name}: {now:,}, none kept: run with --keep")
            is_well = False
            continue
        change = now / before - 1
        is_near = abs(change) <= TOLERANCE
        is_well &= is_near
        word = "" if is_near else " MORE" if change > 0 else " less: keep it with --keep"
        lines.append(f"{name}: {now:,}, kept {before:,}, {change:+.1%}{word}")
    return lines, is_well


def count(valgrind: str, program: Path, case: str) -> int:
    """Instructions of one call of a case.

    Raises:
        GuardError: the program or valgrind failed, or said no number.
    """
    once, twice = (_instructions(valgrind, program, case, repeats) for repeats in (1, 2))
    if twice <= once:
        raise GuardError(f"{case}: two calls took {twice:,} instructions, one {once:,}")
    return twice - once


def cases(program: Path) -> list[str]:
    """Names of all cases."""
    done = subprocess.run([str(program), "list"], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode or not done.stdout:
        raise GuardError(f"{program.name} list: code {done.returncode}")
    return done.stdout.splitlines()


def build() -> Path:
    """Compile the kernels and the program; returns its path.

    Raises:
        GuardError: CMake or the compiler failed.
    """
    folder = _ROOT / "build" / "guard"
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DFOREWORD_PYTHON=OFF", "-DFOREWORD_TESTS=OFF"]
    _run(["cmake", "-S", str(_ROOT), "-B", str(folder), *flags])
    _run(["cmake", "--build", str(folder), "--parallel", "2"])
    program = folder / "kernels"
    includes = [f"-I{_ROOT / 'csrc' / part}" for part in ("include", "cpu", "tests")]
    source, library = _HERE / "kernels.cpp", folder / "libforeword_kernels.a"
    _run(["c++", "-std=c++20", "-O2", *includes, str(source), str(library), "-pthread", "-o", str(program)])
    return program


def compiler() -> str:
    """What counts belong to: the compiler's version and the processor's kind."""
    done = subprocess.run(["c++", "-dumpfullversion"], capture_output=True, text=True, check=False)
    cpus = Path("/proc/cpuinfo")
    has_avx2 = cpus.exists() and " avx2" in cpus.read_text()
    return " ".join([*done.stdout.split(), "avx2" if has_avx2 else "without avx2"])


def _instructions(valgrind: str, program: Path, case: str, repeats: int) -> int:
    command = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [str(program), case, str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    found = _REFERENCES.search(done.stderr)
    if done.returncode or found is None:
        raise GuardError(f"{case}: valgrind ended with code {done.returncode}: {done.stderr.strip()[-200:]}")
    return int(found[1].replace(",", ""))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(list(command), capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuardError(f"{command[0]} ended with code {done.returncode}: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    sys.exit(main())
