"""What the machine can do at most, measured between rows: the memory's bandwidth and the peak of its arithmetic."""

import json
import subprocess
from pathlib import Path

from benchmarks.peers.setup import SetupError, run

_SOURCE = Path(__file__).parent / "limits.cpp"
_MIB_PER_THREAD = 256
_READ = "read GB/s"


def build(folder: Path) -> Path:
    """Compile the measurement for this machine.

    Raises:
        SetupError: the compiler failed.
    """
    program = folder / "limits"
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c++20", "-O3", "-march=native", "-pthread"]
    run(["c++", *flags, str(_SOURCE), "-o", str(program)], folder / "limits.log")
    return program


def measure(program: Path, threads: int, *only: str) -> dict[str, float]:
    """Gigabytes and thousand millions of multiply-adds a second; arithmetic only where the processor has AVX2.

    Raises:
        SetupError: the measurement failed, or said something else than numbers.
    """
    command = [str(program), str(threads), str(_MIB_PER_THREAD), *only]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise SetupError(f"{program.name} ended with code {done.returncode}: {done.stderr.strip()[:200]}")
    try:
        return {str(name): float(value) for name, value in json.loads(done.stdout).items()}
    except (ValueError, TypeError, AttributeError):
        raise SetupError(f"{program.name} said {done.stdout[:100]!r}, not numbers") from None


def read_bytes_s(program: Path, threads: int) -> float:
    """Bytes a second that the memory gives `threads` readers now; takes half a second.

    Raises:
        SetupError: as `measure`, or there was no memory to read.
    """
    found = measure(program, threads, "read").get(_READ, 0.0)
    if found <= 0:
        raise SetupError(f"{program.name} measured no bandwidth")
    return found * 1e9
