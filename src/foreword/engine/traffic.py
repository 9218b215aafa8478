"""What an engine has seen of late: hits, causes of misses and where prompts part from what is stored.

Kept as sums by the minute, for an hour, so that memory does not grow with traffic and old habits are forgotten.
"""

import time
from collections import Counter, deque
from collections.abc import Callable

from msgspec import Struct, field

from foreword.kv_cache.explain import MissCause, MissReport

WINDOW_S = 3600.0
SLICE_S = 60.0
NUM_TENTHS = 10
PREFILL_STEP_TOKENS = 32
"""Steps of at least so many tokens count when the rate of prefill is measured: smaller ones are bound by weights."""


class _Slice(Struct):
    """One minute."""

    began: float
    num_requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    num_by_cause: Counter[MissCause] = field(default_factory=Counter)
    missed_by_cause: Counter[MissCause] = field(default_factory=Counter)  # tokens
    changed_at: list[int] = field(default_factory=lambda: [0] * NUM_TENTHS)


class TrafficSummary(Struct, frozen=True, kw_only=True):
    """The last hour, but for the rate of prefill, which is that of all steps since the start."""

    num_requests: int
    prompt_tokens: int
    hit_tokens: int  # stored prefix of each prompt when it was started
    num_by_cause: dict[str, int]  # requests, by what ended their match
    missed_by_cause: dict[str, int]  # tokens behind it
    changed_at: list[int]  # requests that part from a stored sequence, by the tenth of the prompt in which they do
    prefill_tok_s: float | None  # None before a step was large enough to tell

    @property
    def hit_ratio(self) -> float:
        """Tokens found over tokens that could have been."""
        could = self.prompt_tokens - self.num_requests
        return self.hit_tokens / could if could else 0.0


class Traffic:
    """Notes requests as they start, and steps. Bounded: an hour of minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slices: deque[_Slice] = deque()
        self._prefill_tokens = 0
        self._prefill_s = 0.0

    def started(self, prompt_len: int, report: MissReport) -> None:
        """A request was started, and this is what of its prompt was stored."""
        part = self._now()
        part.num_requests += 1
        part.prompt_tokens += prompt_len
        part.hit_tokens += report.matched_tokens
        part.num_by_cause[report.cause] += 1
        if report.cause is not MissCause.NONE:
            part.missed_by_cause[report.cause] += prompt_len - 1 - report.matched_tokens
        if report.cause is MissCause.CHANGED:
            part.changed_at[report.matched_tokens * NUM_TENTHS // prompt_len] += 1

    def stepped(self, num_tokens: int, seconds: float) -> None:
        """A step computed `num_tokens` tokens."""
        if num_tokens >= PREFILL_STEP_TOKENS:
            self._prefill_tokens += num_tokens
            self._prefill_s += seconds

    @property
    def prefill_tok_s(self) -> float | None:
        """Tokens a second of large steps; None before there was one. Safe from any thread."""
        return self._prefill_tokens / self._prefill_s if self._prefill_s > 0 else None

    def summary(self) -> TrafficSummary:
        """Sums of the last hour."""
        self._forget()
        by_cause: Counter[MissCause] = Counter()
        missed: Counter[MissCause] = Counter()
        for part in self._slices:
            by_cause.update(part.num_by_cause)
            missed.update(part.missed_by_cause)
        return TrafficSummary(
            num_requests=sum(part.num_requests for part in self._slices),
            prompt_tokens=sum(part.prompt_tokens for part in self._slices),
            hit_tokens=sum(part.hit_tokens for part in self._slices),
            num_by_cause={cause.value: count for cause, count in by_cause.most_common()},
            missed_by_cause={cause.value: count for cause, count in missed.most_common()},
            changed_at=[sum(part.changed_at[tenth] for part in self._slices) for tenth in range(NUM_TENTHS)],
            prefill_tok_s=self.prefill_tok_s,
        )

    def _now(self) -> _Slice:
        now = self._clock()
        if not self._slices or now >= self._slices[-1].began + SLICE_S:
            self._forget()
            self._slices.append(_Slice(now))
        return self._slices[-1]

    def _forget(self) -> None:
        while self._slices and self._slices[0].began <= self._clock() - WINDOW_S:
            self._slices.popleft()
