"""An engine whose every row of logits is kept, and the comparison of those rows, by their bytes, with a run alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from foreword.core.config import CacheConfig, KVDtype, SchedulerConfig
from foreword.core.outputs import SampledToken, SamplingRow, SequenceStep
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Usage
from foreword.engine.engine import Engine
from foreword.models.base import Model
from foreword.ops.backend import F32, Backend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner
from foreword.runner.sampler import Sampler
from tests.oracles.sequential_generate import sequential_logits


class RecordingSampler(Sampler):
    """Keeps the bytes of every row of logits, by the tokens that came before."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.seen: dict[tuple[int, ...], set[bytes]] = {}

    def sample(self, logits: F32, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        for row_logits, row in zip(logits, rows, strict=True):
            self.seen.setdefault(tuple(row.past_token_ids), set()).add(row_logits.tobytes())
        return super().sample(logits, rows)


def check_bits(recorder: RecordingSampler, model: Model, kv_dtype: KVDtype, *, chunk: int = 1) -> None:
    """Every recorded row equals, to the bit, that of its tokens run alone, `chunk` at a time."""
    left = set(recorder.seen)
    while left:
        longest = max(left, key=len)
        rows = sequential_logits(model, longest, chunk=chunk, kv_dtype=kv_dtype)
        assert np.isfinite(rows).all()
        for length in range(1, len(longest) + 1):
            prefix = longest[:length]
            if prefix in left:
                left.discard(prefix)
                expected = rows[length - 1].tobytes()
                assert recorder.seen[prefix] == {expected}, f"differing bits after {length} tokens"


@dataclass
class Answer:
    """What one request gave: its continuations in order, its first sequence's account, the events of its steps."""

    tokens: list[list[int]]
    usage: Usage = field(default_factory=Usage)
    steps: list[SequenceStep] = field(default_factory=list)


class RecordedEngine:
    """A real engine on a real backend, in debug mode, with a pool that starts as NaN."""

    def __init__(self, model: Model, backend: Backend, cache: CacheConfig, scheduler: SchedulerConfig) -> None:
        self.recorder = RecordingSampler(backend)
        self.storage = KVStorage(model.config, cache)
        self.storage.poison(range(cache.num_blocks))  # type: ignore[arg-type]
        self.cache = cache
        runner = ModelRunner(
            model, backend, self.storage, cache.block_size, scheduler.token_budget, sampler=self.recorder
        )
        self.engine = Engine(runner, cache, scheduler)
        self._answers: dict[str, Answer] = {}  # of requests not yet run to their end
        self._num_requests = 0

    def add(self, prompt: Sequence[int], *, namespace: bytes = b"", **params: object) -> Answer:
        """Queue a request; the answer fills as the engine steps."""
        settings = SamplingParams(**{"temperature": 0, "max_tokens": 2, "ignore_eos": True, **params})  # type: ignore[arg-type]
        name = str(self._num_requests)
        self._num_requests += 1
        self.engine.add(name, prompt, settings, namespace=namespace)
        self._answers[name] = Answer([[] for _ in range(settings.n)])
        return self._answers[name]

    def step(self) -> None:
        """One step, its tokens put to their answers."""
        for step in self.engine.step().sequences:
            answer = self._answers[step.request_id]
            answer.steps.append(step)
            answer.tokens[step.index] += [token.token_id for token in step.new_tokens]
            if step.index == 0:
                answer.usage = step.usage

    def run(self) -> None:
        """Step until nothing is left to do, and see that every account adds up."""
        while self.engine.has_unfinished:
            self.step()
        for answer in self._answers.values():
            usage = answer.usage
            assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
            assert usage.cached_tokens < max(1, usage.prompt_tokens)
        self._answers.clear()
        stats = self.engine.stats()
        assert stats.free_blocks + stats.cached_blocks == stats.num_blocks

    def ask(self, prompt: Sequence[int], *, namespace: bytes = b"", **params: object) -> Answer:
        """Run one request alone to its end."""
        answer = self.add(prompt, namespace=namespace, **params)
        self.run()
        return answer

    def would_hit(self, prompt: Sequence[int], namespace: bytes = b"") -> int:
        """Tokens of a prompt that would be read from the cache."""
        return self.engine.query_cache(namespace, list(prompt))  # type: ignore[arg-type]
