"""What all rows share: a model ready to be measured, prompts, and how often to repeat."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import asdict, replace

from foreword.bench.corpus import Corpus
from foreword.bench.timing import StreamClock
from foreword.core.errors import InvalidRequestError, InvariantError
from foreword.core.sampling_params import SamplingParams
from foreword.llm import LLM, EngineOptions


def fixed_length(num_tokens: int) -> SamplingParams:
    """Greedy, exactly `num_tokens` tokens."""
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


class Bench:
    """A model under measurement. Opening is put off until a row asks for it, and the model is warm when it gets it.

    `tell` is called with a short line before each repetition.
    """

    def __init__(
        self, path: Path, options: EngineOptions, *, repeats: int = 3, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        if repeats < 1:
            raise InvalidRequestError("repeats", "at least 1", repeats)
        self.path = path
        self.options = options
        self.repeats = repeats
        self.tell = tell
        self._llm: LLM | None = None
        self._corpus: Corpus | None = None

    @property
    def llm(self) -> LLM:
        """The model with the options given, shared by rows."""
        if self._llm is None:
            self._llm = self.open()
        return self._llm

    def open(self, **changes: object) -> LLM:
        """Another instance, with some options changed; its kernels have run once, so that no page is touched first."""
        options = replace(self.options, **changes)
        llm = LLM(self.path, **asdict(options))
        llm.generate({"prompt_token_ids": self._corpus_of(llm).take(32)}, fixed_length(8))
        return llm

    def prompt(self, num_tokens: int) -> list[int]:
        """Tokens of English text, never handed out before."""
        return self._corpus_of(self.llm).take(num_tokens)

    def rounds(self, what: str) -> Iterator[int]:
        """Count the repetitions, telling of each."""
        for number in range(self.repeats):
            self.tell(f"{what} · {number + 1} of {self.repeats}")
            yield number

    def _corpus_of(self, llm: LLM) -> Corpus:
        if self._corpus is None:
            self._corpus = Corpus(llm.tokenizer)
        return self._corpus


def timed(llm: LLM, prompt: Sequence[int], num_tokens: int) -> StreamClock:
    """Stream one greedy answer of exactly `num_tokens` tokens and note when they came.

    Raises:
        InvariantError: the engine gave another number of tokens.
    """
    clock = StreamClock()
    for _ in clock.watch(llm.stream({"prompt_token_ids": list(prompt)}, fixed_length(num_tokens))):
        pass
    if clock.num_tokens != num_tokens:
        raise InvariantError(f"asked for {num_tokens} tokens, {clock.num_tokens} came")
    return clock


def first_token_s(clock: StreamClock) -> float:
    """TTFT of a stream that gave at least one token."""
    if clock.ttft_s is None:
        raise InvariantError("a stream ended without a token")
    return clock.ttft_s


def with_spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Median under the name itself, beside least and most."""
    return {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
