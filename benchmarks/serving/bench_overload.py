"""Question: what is left of a server that is asked ten times what it can do, by clients some of which leave or lie?

Regime: the engine's own rate is the bound; a calm server keeps giving it, and refuses the rest with 429 in no time.
Peak by a closed loop, then an open one at ten times that rate, then one client alone, five seconds later; memory is
read from /proc every second. Goodput is what is answered within the minute of the flood, over that minute, beside the
same of the peak; another figure is taken to the last answer, when nobody asks any more and few still wait. The client
has its part of the same cores, so processor time of both is told beside what
was answered. Run: python benchmarks/serving/bench_overload.py [--model M] [--seconds 60]
"""

import argparse
import json
import os
import threading
import time
import urllib.request
from itertools import islice, takewhile
from pathlib import Path

from foreword.load.drive import Pace, poisson
from foreword.load.own_server import own_server
from foreword.load.report import Objectives
from foreword.load.serving import load
from foreword.load.wire import Endpoint
from foreword.load.workload import Workload

PROMPT, ANSWER = 64, 16
OVERLOAD = 10
REST_S = 5.0


def rss_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Cores:
    """How many cores the server and this client keep busy while something is done."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.server = self.client = 0.0

    def __enter__(self) -> "Cores":
        self._begun = time.perf_counter(), self._server_s(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        wall_s, server_s, client_s = self._begun
        wall_s = time.perf_counter() - wall_s
        self.server, self.client = (self._server_s() - server_s) / wall_s, (time.process_time() - client_s) / wall_s

    def _server_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch(threading.Thread):
    """Reads a process's resident memory every second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.seen: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:  # noqa: D102
        while not self.over.wait(1.0):
            self.seen.append(rss_mib(self.pid))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--max-queued", default="256", help="the server's own bound by pace comes first")
    args = parser.parse_args()
    # A small pool is full before the flood begins: memory that grows afterwards is not K and V.
    flags = ["--model", args.model, "--max-queued", args.max_queued, "--kv-memory", "64MiB"]
    with own_server(flags) as url:
        endpoint = Endpoint.of(url)
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            name = json.load(answer)["data"][0]["id"]
        workload = Workload(model=name, lengths=((PROMPT, ANSWER),), shared=0.5)
        server = child_of(os.getpid())
        with Cores(server) as at_peak:
            peak = load(endpoint, workload.sessions(), Pace(streams=16, duration_s=args.seconds / 4), Objectives())
        rate = OVERLOAD * float(str(peak["requests_per_second"]))
        rude = Workload(model=name, lengths=((PROMPT, ANSWER),), shared=0.5, leave=0.05, garbage=0.01, seed=1)
        # Made ready beforehand: that is none of what a client costs a server.
        ready = list(takewhile(lambda s: s.start_s < args.seconds, poisson(rude.sessions(), rate, 1)))
        watch = Watch(server)
        watch.start()
        pace = Pace(streams=None, duration_s=args.seconds)
        with Cores(server) as in_flood:
            flood = load(endpoint, ready, pace, Objectives())
        watch.over.set()
        time.sleep(REST_S)
        alone = load(endpoint, islice(workload.sessions(), 5), Pace(streams=1), Objectives())
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            held = [line for line in answer.read().decode().splitlines() if 'state="held"' in line]
    middle = watch.seen[len(watch.seen) // 4]
    asked = "requests_per_second_while_asked"
    goodput = float(str(flood[asked])) / float(str(peak[asked]))
    to_the_last = float(str(flood["requests_per_second"])) / float(str(peak["requests_per_second"]))
    print(
        json.dumps(
            {
                "peak": peak,
                "overload": flood,
                "after": alone,
                "goodput_over_peak": goodput,
                "goodput_over_peak_to_the_last": to_the_last,
                "goodput_over_peak_a_server_core": goodput * at_peak.server / in_flood.server,
                "cores_at_peak": {"server": at_peak.server, "client": at_peak.client},
                "cores_in_flood": {"server": in_flood.server, "client": in_flood.client},
                "rss_mib": {"after_a_quarter": middle, "end": watch.seen[-1], "most": max(watch.seen)},
                "held": held,
            }
        )
    )


if __name__ == "__main__":
    main()
