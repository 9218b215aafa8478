"""Time and memory of linting a long log: `python benchmarks/lint/bench_lint.py [REQUESTS]`.

Requests of about 16 KiB (4,000 tokens at four bytes each): one system prompt, and conversations of ten turns.
The bound is reading the file: JSON of 1.6 GB at some 200 MB/s is 8 s.
"""

import json
import random
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from foreword.lint.lint import byte_tokens, read
from foreword.lint.log import read_log

TURNS = 10
WORDS = [f"word{number}" for number in range(500)]


def write_log(path: Path, requests: int) -> None:
    """A log of so many requests."""
    rng = random.Random(1)
    system = " ".join(rng.choices(WORDS, k=800))
    with path.open("w") as file:
        for _ in range(requests // TURNS):
            history = [{"role": "system", "content": system}]
            for _ in range(TURNS):
                history.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=150))})
                file.write(json.dumps({"model": "m", "messages": history}) + "\n")
                history.append({"role": "assistant", "content": " ".join(rng.choices(WORDS, k=150))})


def main() -> None:
    """Write, read once under every rule set, and print a line of JSON."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        write_log(path, requests)
        size = path.stat().st_size
        started, cpu = time.perf_counter(), time.process_time()
        found = read(partial(read_log, path), byte_tokens)
        print(
            json.dumps(
                {
                    "requests": found.requests,
                    "tokens_a_request": round(found.tokens / found.requests),
                    "log_bytes": size,
                    "wall_s": round(time.perf_counter() - started, 2),
                    "cpu_s": round(time.process_time() - cpu, 2),
                    "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                    "hit_rate": round(found.reads["exact"] / found.tokens, 4),
                    "evicted_blocks": found.evicted_blocks,
                }
            )
        )


if __name__ == "__main__":
    main()
