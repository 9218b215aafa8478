"""`foreword serve` in a process of its own, for what is counted by process: descriptors, threads, signals, speed."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ServerProcess:
    """A process that serves; its model is named `tiny`."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url
        self.port = int(url.rpartition(":")[2])

    def num_descriptors(self) -> int:
        """Open files and sockets."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def num_threads(self) -> int:
        """Threads, native ones too."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def cpu_s(self) -> float:
        """Processor time used so far: what it takes, however busy the machine is."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def gauge(self, name: str) -> float:
        """A value of `/metrics`."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        (found,) = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return float(found.rpartition(" ")[2])


@contextmanager
def serving(
    path: str, *argv: str, descriptors: int | None = None, limit: str = "-Sn", stderr: int = subprocess.DEVNULL
) -> Iterator[ServerProcess]:
    """Start one and wait until it is ready; it is gone afterwards.

    It finds a limit of so many `descriptors`, a soft one.
    """
    limited = [] if descriptors is None else ["sh", "-c", f'ulimit {limit} {descriptors}; exec "$@"', "sh"]
    command = [*limited, sys.executable, "-m", "foreword", "serve", path, *argv, "--served-model-name", "tiny"]
    process = subprocess.Popen([*command, "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        while True:
            try:
                urllib.request.urlopen(f"{url}/ready", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.02)
        yield ServerProcess(process, url)
    finally:
        process.kill()
        process.communicate()
