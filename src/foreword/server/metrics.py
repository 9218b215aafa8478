"""What `/metrics` tells. Names are vLLM's where the meaning is the same; label values come from closed sets.

Counted here in plain numbers, by the event loop alone; `metrics_page` writes them out with Prometheus's library, which
is imported when somebody asks: it takes a thirtieth of a server's start, and its locks show in the time of a token.
Counters of the engine are read from its own account when asked, not counted a second time.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

from foreword.engine.metrics import EngineStats
from foreword.server.account import OUTCOMES, Account, Reuse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_E2E_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
_TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
FINISH_REASONS = ("stop", "length", "abort", "error")


class Counter:
    """A number for each combination of labels, which only grows."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, *label_values: str, by: float = 1) -> None:
        """Count; by 0 only shows that there is such a combination."""
        self.values[label_values] = self.values.get(label_values, 0) + by


class Histogram:
    """How many observations lie up to each bound."""

    def __init__(self, name: str, text: str, bounds: Iterable[float]) -> None:
        self.name, self.text, self.bounds = name, text, tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)  # not cumulative; the last for all that are longer
        self._sum = 0.0
        self._parts: list[Histogram] = []

    def observe(self, value: float) -> None:
        """Count one."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def part(self) -> "Histogram":
        """Into which another thread counts: it shows here, and two threads never add to one number."""
        self._parts.append(Histogram(self.name, self.text, self.bounds))
        return self._parts[-1]

    @property
    def sum(self) -> float:
        """Of all that was observed."""
        return self._sum + sum([part.sum for part in self._parts])

    def buckets(self) -> list[tuple[str, float]]:
        """Each upper bound as it is written, with how many do not lie above it."""
        counts = [histogram._counts for histogram in (self, *self._parts)]
        bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(bounds, accumulate(map(sum, zip(*counts, strict=True))), strict=True))


class Gauge:
    """A number of ours, read when asked."""

    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        self.name, self.text, self.value = name, text, value


class EngineView:
    """The engine's account, read when asked."""

    def __init__(self, stats: Callable[[], EngineStats], step_failures: Callable[[], int]) -> None:
        self.stats, self.step_failures = stats, step_failures


Family = Counter | Histogram | Gauge | EngineView


class Metrics:
    """Counters of the web side, and a view on those of the engine. Event loop only."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._families: list[Family] = []
        self.num_ended = 0  # requests that ran
        self._success = self._counter("vllm:request_success", "Requests that ended, by reason", "finished_reason")
        self._http = self._counter("foreword:http_requests", "Answers, by route and status", "route", "status")
        self._refused = self._counter("foreword:requests_refused", "Requests not taken for want of room", "reason")
        self._displaced = self._counter(
            "foreword:connections_displaced", "Resting connections closed to make room for new ones"
        )
        self._cancelled = self._counter("foreword:requests_cancelled", "Requests whose client left")
        self._written = self._counter("foreword:prompt_tokens_written", "Prompt tokens newly made findable")
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "From request to first token", _TTFT_BUCKETS)
        self._itl = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a sequence", _ITL_BUCKETS
        )
        self._direct_itl = self._itl.part()
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "From request to its end", _E2E_BUCKETS)
        self._prompt = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", _TOKEN_BUCKETS)
        self._generated = self._histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request", _TOKEN_BUCKETS
        )
        self._responses = self._counter("foreword:response_cache_requests", "Answers, by what the cache did", "outcome")
        self._saved = self._counter("foreword:response_cache_tokens", "Tokens of answers given again", "kind")
        self._show_zeros()

    def _show_zeros(self) -> None:
        """Series whose labels are known are there from the beginning, so that a rate of them has one."""
        self._displaced.add(by=0)
        self._cancelled.add(by=0)
        self._written.add(by=0)
        for outcome in OUTCOMES:
            self._responses.add(outcome, by=0)
        for kind in ("prompt", "generation"):
            self._saved.add(kind, by=0)
        for reason in FINISH_REASONS:
            self._success.add(reason, by=0)

    def watch(self, stats: Callable[[], EngineStats], step_failures: Callable[[], int]) -> None:
        """Read the engine's counters at every scrape."""
        self._families.append(EngineView(stats, step_failures))

    def watch_gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Read a number of ours at every scrape."""
        self._families.append(Gauge(name, text, value))

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        from foreword.server.metrics_page import write_page

        return write_page(self._families, self._model)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        family = Counter(name, text, *labels)
        self._families.append(family)
        return family

    def _histogram(self, name: str, text: str, bounds: Iterable[float]) -> Histogram:
        family = Histogram(name, text, bounds)
        self._families.append(family)
        return family

    def answered(self, route: str, status: int) -> None:
        """An answer was sent; `route` is one of the server's own paths."""
        self._http.add(route, str(status))

    def refused(self, reason: str) -> None:
        """A request was not taken; `reason` is a word of ours."""
        self._refused.add(reason)

    def displaced(self) -> None:
        """A resting connection had to make room."""
        self._displaced.add()

    def cancelled(self) -> None:
        """A client left before its answer was complete."""
        self._cancelled.add()

    def first_token(self, seconds: float) -> None:
        """A request got its first token."""
        self._ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A sequence got one more token."""
        self._itl.observe(seconds)

    def next_direct_token(self, seconds: float) -> None:
        """The same of a token that never saw the loop. Engine's thread."""
        self._direct_itl.observe(seconds)

    def ended(self, total: Account, finish_reasons: Iterable[str], seconds: float) -> None:
        """All sequences of a request have ended."""
        if total.outcome is not None:
            self._responses.add(total.outcome)
        if Reuse(total.outcome).is_reused:
            self._saved.add("prompt", by=total.prompt)
            self._saved.add("generation", by=total.completion)
        else:
            self.num_ended += 1
        self._written.add(by=total.written)
        self._prompt.observe(total.prompt)
        self._generated.observe(total.completion)
        self._e2e.observe(seconds)
        for reason in finish_reasons:
            self._success.add(reason)
