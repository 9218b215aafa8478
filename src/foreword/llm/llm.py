"""`LLM`: strings in, strings out, over one engine in this process."""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from foreword.core.errors import InvalidRequestError
from foreword.core.probe import Probe
from foreword.core.sampling_params import BeamSearchParams, SamplingParams
from foreword.core.sequence import Usage
from foreword.core.types import TokenId
from foreword.engine.metrics import EngineStats
from foreword.llm import readings
from foreword.llm.beam_search import run_beam_searches
from foreword.llm.loading import EngineOptions, load
from foreword.llm.outputs import (
    BeamSearchOutput,
    EmbeddingOutput,
    MissExplanation,
    RequestOutput,
    RerankOutput,
    ScoreOutput,
    TextDelta,
)
from foreword.llm.prompts import as_prompt_list, prompt_token_ids
from foreword.llm.run import Progress, Run, Runs, Warming
from foreword.text.chat_template import ChatTemplate
from foreword.text.rerank_prompt import RerankFormat, RerankPrompts, RerankSettings, choose_format
from foreword.text.tool_calls import parse_tool_calls
from foreword.text.tools import ToolCall, tool_names
from foreword.text.turns import TurnMemory

Message = Mapping[str, object]
ResultT = TypeVar("ResultT")


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
        self._names = loaded.names
        self._turns = TurnMemory(self.tokenizer)
        self._runs = Runs(self._engine, self.tokenizer, self._turns)
        self._lock = self._runs.lock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is still running, which ends open streams; the object can't be used afterwards."""
        with self._lock:
            for run in self._runs.open:
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
            InvalidRequestError: a prompt is empty, too long or malformed, or a `structured_output` can't be enforced;
                nothing was started.
            ConstraintError: an answer can't go on in the form that was asked for; all of the call is ended.
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
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> Generator[TextDelta, None, None]:
        """As `chat` for one conversation, but yields text as it comes, like `stream`."""
        return self.stream(self._chat_prompts(messages, tools), sampling_params, progress=progress)

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
            outputs.append(BeamSearchOutput(self._runs.new_request_id(), text, ids))
        searching = run_beam_searches(
            self._engine, self._runs.step, self.tokenizer, outputs, params or BeamSearchParams()
        )
        try:
            while (told := self._locked(lambda: next(searching, None))) is not None:
                if progress is not None:
                    progress(finished=told[0], total=len(outputs), generated_tokens=told[1])
        finally:
            self._locked(searching.close)
        return outputs

    def embed(
        self, prompts: object, *, dimensions: int | None = None, progress: Progress | None = None
    ) -> list[EmbeddingOutput]:
        """A vector of length one for each prompt: the hidden state of its last token, after the final norm.

        `dimensions` keeps the first so many values, which is of use only with models trained for it.
        """
        readings.check_dimensions(dimensions, self._model.config.hidden_size)
        return readings.embed(partial(self._read, progress=progress), as_prompt_list(prompts), dimensions)

    def score(
        self,
        text_1: object,
        text_2: object,
        settings: RerankSettings | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[ScoreOutput]:
        """How well each text of `text_2` answers `text_1`, a query: one for all, or one for each.

        A prompt ends where "True" or "False" would follow, and the score is the first one's share of the probability of
        both: one forward pass, in which instruction and query are read once for all documents of a query.
        """
        prompts = RerankPrompts(self.rerank_format, settings or RerankSettings(), self.tokenizer)
        read = partial(self._read, progress=progress)
        return readings.score(read, prompts, readings.as_pairs(text_1, text_2), self.summary.max_model_len - 1)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        settings: RerankSettings | None = None,
        *,
        top_n: int | None = None,
        progress: Progress | None = None,
    ) -> RerankOutput:
        """The documents that answer a query best, by `score`."""
        return readings.ranked(self.score(query, documents, settings, progress=progress), top_n)

    @cached_property
    def rerank_format(self) -> RerankFormat:
        """How this model is asked whether a document answers a query."""
        return choose_format(self._names, self.tokenizer, self._chat_template)

    def warm(self, prompt: object) -> Usage:
        """Compute and store a prompt without answering it; returns what of it was read, computed and written.

        Like `query` and `explain` it takes text, token ids or a conversation. Of a prompt of n tokens the next request
        can then hit n, or n - 1 when it is the same prompt: its last token is always computed.
        """
        ids = self._token_ids(prompt)
        warming = Warming(self._runs.new_request_id())
        with self._lock:
            self._engine.add(warming.request_id, ids, SamplingParams(max_tokens=1), prefill_only=True)
            self._runs.open.append(warming)
        try:
            while self._locked(lambda: self._engine.is_live(warming.request_id)):
                self._runs.step()
        finally:
            with self._lock:
                self._runs.open.remove(warming)
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

    def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, object]]) -> list[str | ToolCall]:
        """Texts and calls in an answer of `chat` with these tools, in order, by the format of the model's template.

        Raises:
            InvalidRequestError: the model has no template, or one whose format can't be read, or a tool has no name.
        """
        form = self.chat_template.tool_format
        if form is None:
            raise InvalidRequestError("tools", "a model whose format for tool calls is known", self.summary.model)
        return parse_tool_calls(text, form, tool_names(tools))

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

    def _locked(self, act: Callable[[], ResultT]) -> ResultT:
        with self._lock:
            return act()

    def _read(self, prompts: Sequence[object], probe: Probe, *, progress: Progress | None) -> list[RequestOutput]:
        run = Run(self._runs, prompts, [SamplingParams(max_tokens=1)] * len(prompts), probe)
        for _ in run.deltas(progress):
            pass
        return run.outputs

    def _start(self, prompts: list[object], params: SamplingParams | Sequence[SamplingParams] | None) -> Run:
        if params is None or isinstance(params, SamplingParams):
            every = [params or SamplingParams()] * len(prompts)
        elif isinstance(params, Sequence) and all(isinstance(each, SamplingParams) for each in params):
            every = list(params)
        else:
            raise InvalidRequestError("sampling_params", f"a SamplingParams, or one a prompt ({len(prompts)})", params)
        if len(every) != len(prompts):
            raise InvalidRequestError("sampling_params", f"one, or one a prompt ({len(prompts)})", len(every))
        return Run(self._runs, prompts, every)


def _options(options: dict[str, object]) -> EngineOptions:
    try:
        return EngineOptions(**options)  # type: ignore[arg-type]  # checked where each is used
    except TypeError:
        known = set(EngineOptions.__struct_fields__)
        unknown = sorted(set(options) - known)
        raise InvalidRequestError("LLM", f"options among {', '.join(sorted(known))}", unknown) from None
