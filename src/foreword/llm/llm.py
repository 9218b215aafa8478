"""`LLM`: strings in, strings out, over one engine in this process."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from foreword.core.errors import InvalidRequestError
from foreword.core.outputs import SequenceStep
from foreword.core.sampling_params import BeamSearchParams, SamplingParams
from foreword.core.sequence import FinishReason, Usage
from foreword.core.types import TokenId
from foreword.engine.metrics import EngineStats
from foreword.llm.beam_search import run_beam_searches
from foreword.llm.fair_lock import FairLock
from foreword.llm.generation import GenerationTracker
from foreword.llm.loading import EngineOptions, load
from foreword.llm.outputs import BeamSearchOutput, MissExplanation, RequestOutput, TextDelta
from foreword.llm.prompts import as_prompt_list, prompt_token_ids
from foreword.text.chat_template import ChatTemplate
from foreword.text.turns import TurnMemory

Message = Mapping[str, object]
ResultT = TypeVar("ResultT")


class Progress(Protocol):
    """Told after each step how many requests have ended and how many tokens were generated."""

    def __call__(self, *, finished: int, total: int, generated_tokens: int) -> None:
        """Show it."""


class LLM:
    """A model ready to answer.

    Every keyword of `EngineOptions` may be given. Several threads may use one `LLM`: what they ask for is computed in
    the same steps, as with several streams. `events` says where KV events are published; None where they are not.

    Raises:
        ModelNotFoundError, ModelFormatError: the path holds no usable model.
        CapacityError: the memory granted is too small.
        InvalidRequestError: an option is out of range.
        ForewordError: events were asked for and can't be published.

    Example:
        >>> from foreword import LLM, SamplingParams
        >>> llm = LLM("model.gguf")  # doctest: +SKIP
        >>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text  # doctest: +SKIP
        ' Paris.'
    """

    def __init__(self, model: str | Path, **options: object) -> None:
        self.options = _options(options)
        loaded = load(model, self.options)
        self.tokenizer, self._chat_template, self.summary = loaded.tokenizer, loaded.chat_template, loaded.summary
        self._engine, self._model = loaded.engine, loaded.model
        self.events = loaded.events
        self._turns = TurnMemory(self.tokenizer)
        self._request_numbers = count()
        self._runs: list[_Run | _Warming] = []  # the calls under way: streams may be open beside one another
        self._lock = FairLock()  # engine, runs and turns belong to whoever holds it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is still running, which ends open streams; the object can't be used afterwards."""
        with self._lock:
            for run in self._runs:
                run.end()
            self._engine.abort_all()
            if self.events is not None:
                self.events.close()

    def generate(
        self,
        prompts: object,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Answer one prompt or many, batched; results in the order of the prompts.

        A prompt is text or `{"prompt_token_ids": [...]}`. `sampling_params` is one for all, or one a prompt.

        Raises:
            InvalidRequestError: a prompt is empty, too long or malformed; nothing was started.
        """
        run = self._start(as_prompt_list(prompts), sampling_params)
        for _ in run.deltas(progress):
            pass
        return run.outputs

    def stream(
        self, prompts: object, sampling_params: SamplingParams | None = None, *, progress: Progress | None = None
    ) -> Generator[TextDelta, None, None]:
        """As `generate`, but yields text as it comes.

        Closing the iterator aborts what is still running, and so does an exception out of `progress`, which is called
        between steps: the one place where stopping is safe while a long prompt is still being read. Other calls may be
        made while it is open, and other streams: all that is under way is computed in the same steps.
        """
        return self._start(as_prompt_list(prompts), sampling_params).deltas(progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, each a list of `{"role", "content"}`, through the model's chat template."""
        return self.generate(self._chat_prompts(messages, tools), sampling_params, progress=progress)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        progress: Progress | None = None,
    ) -> Generator[TextDelta, None, None]:
        """As `chat` for one conversation, but yields text as it comes, like `stream`."""
        return self.stream(self._chat_prompts(messages, None), sampling_params, progress=progress)

    def beam_search(
        self, prompts: object, params: BeamSearchParams | None = None, *, progress: Progress | None = None
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of one prompt or many, in one batch; results in the order of the prompts.

        Beams share the K and V of all they have in common. `progress` counts the tokens of each prompt's longest beam.

        Raises:
            InvalidRequestError: a prompt is empty, too long or malformed; nothing was started.
        """
        if not isinstance(params, BeamSearchParams | None):
            raise InvalidRequestError("params", "BeamSearchParams", params)
        outputs = []
        for prompt in as_prompt_list(prompts):
            text, ids = prompt_token_ids(prompt, self.tokenizer)
            outputs.append(BeamSearchOutput(self._new_request_id(), text, ids))
        searching = run_beam_searches(self._engine, self._step, self.tokenizer, outputs, params or BeamSearchParams())
        try:
            while (told := self._locked(lambda: next(searching, None))) is not None:
                if progress is not None:
                    progress(finished=told[0], total=len(outputs), generated_tokens=told[1])
        finally:
            self._locked(searching.close)
        return outputs

    def warm(self, prompt: object) -> Usage:
        """Compute and store a prompt without answering it; returns what of it was read, computed and written.

        Like `query` and `explain` it takes text, token ids or a conversation. Of a prompt of n tokens the next request
        can then hit n, or n - 1 when it is the same prompt: its last token is always computed.
        """
        ids = self._token_ids(prompt)
        warming = _Warming(self._new_request_id())
        with self._lock:
            self._engine.add(warming.request_id, ids, SamplingParams(max_tokens=1), prefill_only=True)
            self._runs.append(warming)
        try:
            while self._locked(lambda: self._engine.is_live(warming.request_id)):
                self._step()
        finally:
            with self._lock:
                self._runs.remove(warming)
                self._engine.abort(warming.request_id)
        return warming.usage

    def query(self, prompt: object) -> int:
        """Tokens of a prompt that would be read from the cache now. Changes nothing."""
        ids = [TokenId(t) for t in self._token_ids(prompt)]
        return self._locked(lambda: self._engine.query_cache(b"", ids))

    def explain(self, prompt: object) -> MissExplanation:
        """Where a prompt parts from the nearest stored one, and why. Changes nothing."""
        ids = [TokenId(t) for t in self._token_ids(prompt)]
        report = self._locked(lambda: self._engine.explain_cache(b"", ids))
        return MissExplanation(
            prompt_tokens=len(ids),
            matched_tokens=report.matched_tokens,
            cause=report.cause.value,
            matched_text=self.tokenizer.decode(ids[: report.matched_tokens], skip_special_tokens=False),
            wanted=self._told(report.wanted_token),
            stored=self._told(report.stored_token),
        )

    def reset(self) -> None:
        """Forget every stored prefix."""
        self._locked(self._engine.reset_cache)

    def stats(self) -> EngineStats:
        """Counters of the engine since it started."""
        return self._locked(self._engine.stats)

    def check_invariants(self) -> None:
        """Raise InvariantError unless the engine's bookkeeping adds up. Cost: O(everything)."""
        self._locked(self._engine.check_invariants)

    @property
    def has_chat_template(self) -> bool:
        """True when the model's files hold a chat template."""
        return self._chat_template is not None

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            InvalidRequestError: the model has none.
        """
        if self._chat_template is None:
            raise InvalidRequestError("messages", "a model with a chat template", self.summary.model)
        return self._chat_template

    def _token_ids(self, prompt: object) -> list[int]:
        if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            (prompt,) = self._chat_prompts(prompt, None)
        return prompt_token_ids(prompt, self.tokenizer)[1]

    def _told(self, token: int | None) -> str | None:
        return None if token is None else self.tokenizer.decode([token], skip_special_tokens=False)

    def _chat_prompts(self, messages: object, tools: Sequence[Mapping[str, object]] | None) -> list[object]:
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise InvalidRequestError("messages", 'a list of {"role", "content"}', messages)
        conversations = [messages] if isinstance(messages[0], Mapping) else messages
        template = self.chat_template
        rendered = [template.encode(c, tools=tools) for c in conversations]
        with self._lock:
            return [{"prompt_token_ids": self._turns.splice(ids)} for ids in rendered]

    def _step(self) -> None:
        """One step of all that is under way, whichever call asks for it; each call is given what is its own."""
        with self._lock:
            steps = self._engine.step().sequences
            for run in self._runs:
                run.take_in(steps)

    def _locked(self, act: Callable[[], ResultT]) -> ResultT:
        with self._lock:
            return act()

    def _start(self, prompts: list[object], params: SamplingParams | Sequence[SamplingParams] | None) -> "_Run":
        if params is None or isinstance(params, SamplingParams):
            every = [params or SamplingParams()] * len(prompts)
        elif isinstance(params, Sequence) and all(isinstance(each, SamplingParams) for each in params):
            every = list(params)
        else:
            raise InvalidRequestError("sampling_params", f"a SamplingParams, or one a prompt ({len(prompts)})", params)
        if len(every) != len(prompts):
            raise InvalidRequestError("sampling_params", f"one, or one a prompt ({len(prompts)})", len(every))
        return _Run(self, prompts, every)

    def _new_request_id(self) -> str:
        return f"request-{next(self._request_numbers)}"


class _Warming:
    """A prompt that is read and not answered."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.usage = Usage()

    def take_in(self, steps: Sequence[SequenceStep]) -> None:
        """Keep the newest account."""
        for step in steps:
            if step.request_id == self.request_id:
                self.usage = step.usage

    def end(self) -> None:
        """Nothing to mark."""


class _Run:
    """The requests of one call, all checked before the first is started."""

    def __init__(self, llm: LLM, prompts: list[object], params: list[SamplingParams]) -> None:
        self._engine = llm._engine
        self._step: Callable[[], object] = llm._step
        self._lock, self._runs = llm._lock, llm._runs
        self._turns = llm._turns
        self._deltas: deque[TextDelta] = deque()  # computed, and not yet yielded
        self._generated_tokens = 0
        self._eos = frozenset(llm.tokenizer.eos_token_ids)
        self._params = params
        self.outputs: list[RequestOutput] = []
        self._trackers: dict[str, tuple[int, GenerationTracker]] = {}
        for index, (prompt, chosen) in enumerate(zip(prompts, params, strict=True)):
            text, ids = prompt_token_ids(prompt, llm.tokenizer)
            with self._lock:
                self._engine.check(ids, chosen)
            output = RequestOutput(llm._new_request_id(), text, ids, [])
            self.outputs.append(output)
            finish = partial(self._engine.finish, output.request_id)
            self._trackers[output.request_id] = index, GenerationTracker(output, chosen, llm.tokenizer, finish)

    def deltas(self, progress: Progress | None) -> Generator[TextDelta, None, None]:
        """Run to the end, yielding what each step added."""
        waiting = iter(self._trackers.values())
        with self._lock:
            self._runs.append(self)
        try:
            while (deltas := self._advance(waiting)) is not None:
                yield from deltas
                if progress is not None:
                    done = sum(output.finished for output in self.outputs)
                    progress(finished=done, total=len(self.outputs), generated_tokens=self._generated_tokens)
        finally:
            with self._lock:
                self._runs.remove(self)
                for output in self.outputs:
                    if not output.finished:
                        self._engine.abort(output.request_id)

    def _advance(self, waiting: Iterator[tuple[int, GenerationTracker]]) -> list[TextDelta] | None:
        """What came since the last time, or comes with one step more; None at the end."""
        with self._lock:
            if not self._is_finished:
                self._feed(waiting)
                if not self._deltas:  # else another call's step has brought something
                    self._step()
            elif not self._deltas:
                return None
            deltas = list(self._deltas)
            self._deltas.clear()
            return deltas

    def take_in(self, steps: Sequence[SequenceStep]) -> None:
        """Keep what a step added to the requests of this call, and end those that met a stop string."""
        for step in steps:
            if step.request_id not in self._trackers:
                continue
            index, tracker = self._trackers[step.request_id]
            self._generated_tokens += len(step.new_tokens)
            delta = tracker.apply(step, index)
            if delta.finish_reason is not None:
                ended = tracker.output.outputs[delta.index]
                self._turns.remember(tracker.output.prompt_token_ids, ended.token_ids)
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
            self._engine.add(output.request_id, output.prompt_token_ids, self._params[index], self._eos)


def _options(options: dict[str, object]) -> EngineOptions:
    try:
        return EngineOptions(**options)  # type: ignore[arg-type]  # checked where each is used
    except TypeError:
        known = set(EngineOptions.__dataclass_fields__)
        unknown = sorted(set(options) - known)
        raise InvalidRequestError("LLM", f"options among {', '.join(sorted(known))}", unknown) from None
