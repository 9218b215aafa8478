"""Engines that are Python libraries: a worker in an environment of their own, asked over its standard streams.

A request is a line `{"id", "prompt", "num_tokens", "logprobs"}`; the worker answers with lines `{"id", "token"}` or
`{"id", "token", "logprobs"}`, one a token, then `{"id", "done": true}`. `{"ready": version}` is its first line.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.peers.engine import Answer, EngineError, last_line, peak_memory_mib, timed

START_LIMIT_S = 600.0
ANSWER_LIMIT_S = 1800.0


class PipeEngine:
    """A worker process for as long as it is needed.

    Raises:
        EngineError: the worker ended, or did not answer in time; with the last line it wrote on stderr.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, notes: dict[str, str]) -> None:
        self.name = name
        self._ids = count()
        self._waiting: dict[int, SimpleQueue[dict[str, Any]]] = {-1: SimpleQueue()}
        self._lock = threading.Lock()
        self._log = log
        started = time.perf_counter()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            ready = self._next(self._waiting[-1], START_LIMIT_S)
            self.notes = notes | {"version": str(ready.get("ready"))}
            self.ask([1], 1)
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - started

    def ask(self, prompt: list[int], num_tokens: int, logprobs: int = 0) -> Answer:
        """Send one request and wait for its tokens."""
        request = {"id": next(self._ids), "prompt": prompt, "num_tokens": num_tokens, "logprobs": logprobs}
        return timed(self.name, num_tokens, lambda answer: self._events(request, answer))

    def memory_mib(self) -> float | None:
        """Highest resident set of the worker, from the kernel; None where it does not say."""
        return peak_memory_mib(self._process.pid)

    def close(self) -> None:
        """End the worker."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # a request it never read
                stream.close()

    def _events(self, request: dict[str, Any], answer: Answer) -> Iterator[int]:
        events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._waiting[request["id"]] = events
        try:
            with self._lock:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            while not (event := self._next(events, ANSWER_LIMIT_S)).get("done"):
                answer.num_tokens += 1
                answer.text += f"{event['token']} "
                if request["logprobs"]:
                    answer.logprobs.append({str(token): value for token, value in event["logprobs"]})
                yield 1
        except BrokenPipeError:
            raise EngineError(f"{self.name}: the worker has ended: {self._last_line()}") from None
        finally:
            del self._waiting[request["id"]]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue  # a library's own remark
            event = json.loads(line)
            queue = self._waiting.get(event.get("id", -1))
            if queue is not None:
                queue.put(event)
        for queue in list(self._waiting.values()):
            queue.put({"error": f"the worker has ended: {self._last_line()}"})

    def _next(self, events: "SimpleQueue[dict[str, Any]]", limit_s: float) -> dict[str, Any]:
        try:
            event = events.get(timeout=limit_s)
        except Empty:
            raise EngineError(f"{self.name}: no answer after {limit_s:.0f} s") from None
        if "error" in event:
            raise EngineError(f"{self.name}: {event['error']}")
        return event

    def _last_line(self) -> str:
        return last_line(self._log.read_bytes())
