"""What a row asks of an engine, whoever it is: answers with the times of their tokens."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol


@dataclass(slots=True)
class Answer:
    """One request's tokens: when each came, counted from sending, and how probable it was."""

    times_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    total_s: float = 0.0
    sent_at_s: float = 0.0  # on the client's clock, to lay several answers beside one another
    text: str = ""
    logprobs: list[dict[str, float]] = field(default_factory=list)  # of each token's likeliest, by its text or id
    cached_tokens: int | None = None  # None where the engine does not say

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.times_s[0]

    @property
    def decode_tok_s(self) -> float:
        """Tokens after the first, by the time after the first."""
        return (self.num_tokens - 1) / (self.times_s[-1] - self.times_s[0])


class EngineError(Exception):
    """An engine did not start, or did not answer as it should; the message names it."""


class Engine(Protocol):
    """A running engine with nothing in its cache."""

    name: str
    start_s: float  # from its process's start to the first answered request
    notes: dict[str, str]  # version and flags

    def ask(self, prompt: list[int], num_tokens: int, logprobs: int = 0) -> Answer:
        """Greedy, exactly `num_tokens` tokens; called from several threads at once."""

    def memory_mib(self) -> float | None:
        """Most memory its processes held so far."""

    def close(self) -> None:
        """Stop it."""


def timed(name: str, num_tokens: int, events: Callable[[Answer], Iterator[int]]) -> Answer:
    """An answer filled by `events`, which sends the request and says how many tokens each thing that came has brought.

    Raises:
        EngineError: another number of tokens came than was asked for.
    """
    answer = Answer(sent_at_s=time.perf_counter())
    for brought in events(answer):
        answer.times_s += [time.perf_counter() - answer.sent_at_s] * brought
    answer.total_s = time.perf_counter() - answer.sent_at_s
    if answer.num_tokens != num_tokens or not answer.times_s:
        raise EngineError(f"{name}: asked for {num_tokens} tokens, {answer.num_tokens} came")
    return answer


def peak_memory_mib(process: int) -> float | None:
    """Highest resident set of a process so far, from the kernel; None where it does not say."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    peaks = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    return sum(peaks) / 1024 if peaks else None


def last_line(log: bytes) -> str:
    """What a process said last, for a person to read."""
    lines = log.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it wrote nothing"


def ask_all(
    engine: Engine, prompts: Sequence[list[int]], num_tokens: int, at_once: int, logprobs: int = 0
) -> list[Answer]:
    """Answers in the prompts' order, `at_once` of them under way at any time."""
    waiting: SimpleQueue[int] = SimpleQueue()
    for index in range(len(prompts)):
        waiting.put(index)
    answers: dict[int, Answer] = {}
    faults: list[BaseException] = []

    def work() -> None:
        try:
            while not faults:
                index = waiting.get_nowait()
                answers[index] = engine.ask(prompts[index], num_tokens, logprobs)
        except Empty:
            return
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(min(at_once, len(prompts)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return [answers[index] for index in range(len(prompts))]
