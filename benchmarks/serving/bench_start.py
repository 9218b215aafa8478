"""Question: how long is it from `foreword serve` to the first answered request, and what does it take until then?

Regime: imports, nearly all of it processor time in the interpreter; so a busy machine doubles it, and only starts by
turns compare. The request is of one token id; whoever sends text pays for the tokenizer's table besides. Each command
is started once before, so that bytecode and files are there. Run:

    python benchmarks/serving/bench_start.py [--model M] [--rounds 15] [COMMAND ...]

A command is a `foreword` to start: by default the one beside this Python. For one laid out as a wheel,
`python3 -m venv build/start && build/start/bin/pip install .`, and then `build/start/bin/foreword`.
"""

import argparse
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

NAME = "m"
RETRY_S = 0.002
PATIENCE_S = 60.0


class Start(NamedTuple):
    """One start, to its first answer."""

    wall_s: float
    processor_s: float
    peak_mib: float
    resident_mib: float


def start(command: str, model: str, threads: int) -> Start:
    """Start a server, ask it, and end it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = ["serve", model, "--port", str(port), "--threads", str(threads), "--quiet"]
    flags += ["--kv-memory", "256MiB", "--served-model-name", NAME]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with subprocess.Popen(
        [*command.split(), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            _ask(process, port, began + PATIENCE_S)
            wall = time.perf_counter() - began
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        finally:
            process.terminate()
    processor = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    peak, resident = (int(status[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS"))
    return Start(wall, processor, peak, resident)


def _ask(process: "subprocess.Popen[bytes]", port: int, deadline: float) -> None:
    body = json.dumps({"model": NAME, "prompt": [1], "max_tokens": 1, "temperature": 0, "stream": True})
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200 or not answer.read():
                raise SystemExit(f"status {answer.status}")
        except OSError:
            if process.poll() is not None or time.perf_counter() > deadline:
                raise SystemExit(f"no server: {process.args!r}") from None
            time.sleep(RETRY_S)
        else:
            return
        finally:
            connection.close()


def main() -> None:
    """Starts by turns, a line a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    beside = shutil.which("foreword", path=str(Path(sys.executable).parent)) or f"{sys.executable} -m foreword"
    parser.add_argument("commands", nargs="*", default=[beside])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    measured: dict[str, list[Start]] = {command: [] for command in chosen.commands}
    for command in measured:
        start(command, chosen.model, chosen.threads)
    for _ in range(chosen.rounds):
        for command, starts in measured.items():
            starts.append(start(command, chosen.model, chosen.threads))
    for command, starts in measured.items():
        wall, processor = [each.wall_s for each in starts], [each.processor_s for each in starts]
        print(
            f"{command}: {statistics.median(wall):.2f} s ({min(wall):.2f} to {max(wall):.2f}), "
            f"processor {statistics.median(processor):.2f} s ({min(processor):.2f}), "
            f"peak {statistics.median(each.peak_mib for each in starts):.0f} MiB, "
            f"resident {statistics.median(each.resident_mib for each in starts):.0f} MiB"
        )


if __name__ == "__main__":
    main()
