"""Calls under way on one engine: each call's requests, and steps that serve all of them."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Protocol

from foreword.core.errors import ForewordError
from foreword.core.outputs import StepResult
from foreword.core.probe import Probe
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import FinishReason, Usage
from foreword.engine.engine import Engine
from foreword.llm.fair_lock import FairLock
from foreword.llm.generation import GenerationTracker
from foreword.llm.outputs import RequestOutput, TextDelta
from foreword.llm.prompts import prompt_token_ids
from foreword.text.constraints import ConstraintCompiler
from foreword.text.tokenizer import Tokenizer
from foreword.text.turns import TurnMemory


class Progress(Protocol):
    """Told after each step how many requests have ended and how many tokens were generated."""

    def __call__(self, *, finished: int, total: int, generated_tokens: int) -> None:
        """Show it."""


class Runs:
    """The calls under way: streams may be open beside one another, and threads may share them.

    Engine, open runs and turns belong to whoever holds `lock`.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, turns: TurnMemory) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.turns = turns
        self.constraints = ConstraintCompiler(tokenizer)
        self.lock = FairLock()
        self.open: list[Run | Warming] = []
        self._request_numbers = count()

    def new_request_id(self) -> str:
        """An id no other request has."""
        return f"request-{next(self._request_numbers)}"

    def step(self) -> None:
        """One step of all that is under way, whichever call asks for it; each call is given what is its own."""
        with self.lock:
            result = self.engine.step()
            for run in self.open:
                run.take_in(result)


class Warming:
    """A prompt that is read and not answered."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.usage = Usage()

    def take_in(self, result: StepResult) -> None:
        """Keep the newest account."""
        for step in result.sequences:
            if step.request_id == self.request_id:
                self.usage = step.usage

    def end(self) -> None:
        """Nothing to mark."""


class Run:
    """The requests of one call, all checked before the first is started.

    With a `probe` prompts are read to their end, and nothing is drawn.
    """

    def __init__(
        self, runs: Runs, prompts: Sequence[object], params: Sequence[SamplingParams], probe: Probe | None = None
    ) -> None:
        self._runs, self._engine, self._lock = runs, runs.engine, runs.lock
        self._deltas: deque[TextDelta] = deque()  # computed, and not yet yielded
        self._error: ForewordError | None = None  # what ended one of the requests before its time
        self._generated_tokens = 0
        self._eos = frozenset(runs.tokenizer.eos_token_ids)
        self._params = params
        self._probe = probe
        self._constraints = [
            None if p.structured_output is None else runs.constraints.compile(p.structured_output) for p in params
        ]
        self.outputs: list[RequestOutput] = []
        self._trackers: dict[str, tuple[int, GenerationTracker]] = {}
        for index, (prompt, chosen) in enumerate(zip(prompts, params, strict=True)):
            text, ids = prompt_token_ids(prompt, runs.tokenizer)
            with self._lock:
                self._engine.check(ids, chosen)
            output = RequestOutput(runs.new_request_id(), text, ids, [])
            self.outputs.append(output)
            finish = partial(self._engine.finish, output.request_id)
            self._trackers[output.request_id] = index, GenerationTracker(output, chosen, runs.tokenizer, finish)

    def deltas(self, progress: Progress | None) -> Generator[TextDelta, None, None]:
        """Run to the end, yielding what each step added."""
        waiting = iter(self._trackers.values())
        with self._lock:
            self._runs.open.append(self)
        try:
            while (deltas := self._advance(waiting)) is not None:
                yield from deltas
                if progress is not None:
                    done = sum(output.finished for output in self.outputs)
                    progress(finished=done, total=len(self.outputs), generated_tokens=self._generated_tokens)
        finally:
            with self._lock:
                self._runs.open.remove(self)
                for output in self.outputs:
                    if not output.finished:
                        self._engine.abort(output.request_id)

    def _advance(self, waiting: Iterator[tuple[int, GenerationTracker]]) -> list[TextDelta] | None:
        """What came since the last time, or comes with one step more; None at the end."""
        with self._lock:
            if not self._is_finished:
                self._feed(waiting)
                if not self._deltas:  # else another call's step has brought something
                    self._runs.step()
                if self._error is not None:
                    raise self._error
            elif not self._deltas:
                return None
            deltas = list(self._deltas)
            self._deltas.clear()
            return deltas

    def take_in(self, result: StepResult) -> None:
        """Keep what a step added to the requests of this call, and end those that met a stop string."""
        for failure in result.failures:
            if failure.request_id in self._trackers:
                self._error = failure.error
        for step in result.sequences:
            if step.request_id not in self._trackers:
                continue
            index, tracker = self._trackers[step.request_id]
            delta = tracker.apply(step, index)
            self._generated_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                ended = tracker.output.outputs[delta.index]
                self._runs.turns.remember(tracker.output.prompt_token_ids, ended.token_ids)
            self._deltas.append(delta)

    def end(self) -> None:
        """Mark what has not ended as aborted: nothing more will come."""
        for output in self.outputs:
            for continuation in output.outputs:
                continuation.finish_reason = continuation.finish_reason or FinishReason.ABORT.value

    @property
    def _is_finished(self) -> bool:
        return all(output.finished for output in self.outputs)

    def _feed(self, waiting: Iterator[tuple[int, GenerationTracker]]) -> None:
        # The engine's queue is bounded; the rest of a large call waits here.
        while self._engine.has_room():
            following = next(waiting, None)
            if following is None:
                return
            index, tracker = following
            output = tracker.output
            params, ids, constraint = self._params[index], output.prompt_token_ids, self._constraints[index]
            self._engine.add(output.request_id, ids, params, self._eos, probe=self._probe, constraint=constraint)
