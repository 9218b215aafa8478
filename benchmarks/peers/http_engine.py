"""Engines behind HTTP: `foreword serve` and `llama-server`, started and asked by the same code."""

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from benchmarks.peers.engine import Answer, EngineError, last_line, peak_memory_mib, timed

START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 1800.0
_POLL_S = 0.005


class Dialect(Protocol):
    """How a server is asked, and what its answers mean."""

    path: str

    def body(self, prompt: list[int], num_tokens: int, logprobs: int) -> dict[str, Any]:
        """The request."""

    def read(self, event: dict[str, Any], answer: Answer) -> int:
        """Add an event of the stream to the answer; returns how many tokens it brought."""


class OpenAIDialect:
    """`/v1/completions` with token ids."""

    path = "/v1/completions"

    def __init__(self, model: str) -> None:
        self._model = model

    def body(self, prompt: list[int], num_tokens: int, logprobs: int) -> dict[str, Any]:
        """Greedy, of a fixed length, with usage at the end."""
        asked: dict[str, Any] = {"model": self._model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
        asked |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        return asked | {"logprobs": logprobs} if logprobs else asked

    def read(self, event: dict[str, Any], answer: Answer) -> int:
        """Text and logprobs of a piece, or the usage that comes last."""
        if event.get("usage"):
            usage = event["usage"]
            answer.num_tokens = usage["completion_tokens"]
            answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if not event.get("choices"):
            return 0
        choice = event["choices"][0]
        answer.text += choice.get("text") or ""
        found = choice.get("logprobs") or {}
        answer.logprobs += [dict(likeliest) for likeliest in found.get("top_logprobs") or []]
        return 1


class LlamaDialect:
    """llama.cpp's own `/completion`."""

    path = "/completion"

    def body(self, prompt: list[int], num_tokens: int, logprobs: int) -> dict[str, Any]:
        """Greedy, of a fixed length."""
        asked: dict[str, Any] = {"prompt": prompt, "n_predict": num_tokens, "temperature": 0}
        asked |= {"ignore_eos": True, "stream": True, "cache_prompt": True}
        return asked | {"n_probs": logprobs} if logprobs else asked

    def read(self, event: dict[str, Any], answer: Answer) -> int:
        """A token, or the timings that come last."""
        if "timings" in event:
            answer.num_tokens = event["timings"]["predicted_n"]
            answer.cached_tokens = event["timings"].get("cache_n")
        answer.text += event.get("content") or ""
        for token in event.get("completion_probabilities") or []:
            answer.logprobs.append({str(one["id"]): one["logprob"] for one in token["top_logprobs"]})
        return 1 if event.get("content") or event.get("tokens") else 0


class HTTPEngine:
    """A server of its own for as long as it is needed.

    `command` gives the command line for a port. `start_s` ends with the answer to a first request of one token.

    Raises:
        EngineError: the server ended, or did not answer in time; with the last line it wrote.
    """

    def __init__(
        self, name: str, command: Callable[[int], Sequence[str]], dialect: Dialect, notes: dict[str, str]
    ) -> None:
        self.name = name
        self.notes = notes
        self._dialect = dialect
        self._port = _free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # as long-lived as the server
        started = time.perf_counter()
        line = list(command(self._port))
        try:
            self._process = subprocess.Popen(line, stdout=self._log, stderr=self._log, start_new_session=True)
        except OSError as error:
            self._log.close()
            raise EngineError(f"{name}: {line[0]}: {error.strerror}") from None
        try:
            self._wait_for_answer(started)
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - started

    def ask(self, prompt: list[int], num_tokens: int, logprobs: int = 0) -> Answer:
        """Send one request and read its stream to the end."""
        body = json.dumps(self._dialect.body(prompt, num_tokens, logprobs))
        return timed(self.name, num_tokens, lambda answer: self._events(body, answer))

    def memory_mib(self) -> float | None:
        """Highest resident set of the server's process, from the kernel; None where it does not say."""
        return peak_memory_mib(self._process.pid)

    def close(self) -> None:
        """End the server, and all it started."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()

    def _events(self, body: str, answer: Answer) -> Iterator[int]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_LIMIT_S)
        try:
            connection.request("POST", self._dialect.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise EngineError(f"{self.name}: {response.status} {response.read(400)!r}")
            for line in response:
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    event = json.loads(data)
                    if "error" in event:
                        raise EngineError(f"{self.name}: {str(event['error'])[:200]}")
                    yield self._dialect.read(event, answer)
        except http.client.HTTPException as error:
            raise EngineError(f"{self.name}: {type(error).__name__} while answering") from None
        finally:
            connection.close()

    def _wait_for_answer(self, started: float) -> None:
        while True:
            if self._process.poll() is not None:
                raise EngineError(f"{self.name}: ended with code {self._process.returncode}: {self._last_line()}")
            if time.perf_counter() - started > START_LIMIT_S:
                raise EngineError(f"{self.name}: no answer after {START_LIMIT_S:.0f} s: {self._last_line()}")
            try:
                self.ask([1], 1)
                return
            except (OSError, EngineError) as error:
                # Not listening yet, or loading: llama-server says 503 until its model is there.
                if isinstance(error, EngineError) and " 503 " not in str(error):
                    raise
                time.sleep(_POLL_S)

    def _last_line(self) -> str:
        self._log.seek(0)
        return last_line(self._log.read())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
