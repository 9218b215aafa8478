"""What `/metrics` tells. Names are vLLM's where the meaning is the same; label values come from closed sets.

Counters of the engine are read from its own account when asked, not counted a second time.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from foreword.engine.metrics import EngineStats
from foreword.server.account import OUTCOMES, Account, Reuse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_E2E_BUCKETS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
_TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
FINISH_REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """Counters of the web side, and a view on those of the engine."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self.num_ended = 0  # requests that ran

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ("model_name", *labels), registry=self._registry)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            family = Histogram(name, text, ("model_name",), registry=self._registry, buckets=tuple(buckets))
            return family.labels(model)

        self._success = counter("vllm:request_success", "Requests that ended, by reason", "finished_reason")
        self._http = counter("foreword:http_requests", "Answers, by route and status", "route", "status")
        self._refused = counter("foreword:requests_refused", "Requests not taken for want of room", "reason")
        self._cancelled = counter("foreword:requests_cancelled", "Requests whose client left").labels(model)
        self._written = counter("foreword:prompt_tokens_written", "Prompt tokens newly made findable").labels(model)
        self._ttft = histogram("vllm:time_to_first_token_seconds", "From request to first token", _TTFT_BUCKETS)
        self._itl = _TokenTimes(model)
        self._registry.register(self._itl)
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "From request to its end", _E2E_BUCKETS)
        self._prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", _TOKEN_BUCKETS)
        self._generated = histogram("vllm:request_generation_tokens", "Generated tokens of a request", _TOKEN_BUCKETS)
        self._responses = counter("foreword:response_cache_requests", "Answers, by what the cache did", "outcome")
        self._saved = counter("foreword:response_cache_tokens", "Tokens of answers given again", "kind")
        for outcome in OUTCOMES:
            self._responses.labels(model, outcome)
        for kind in ("prompt", "generation"):
            self._saved.labels(model, kind)
        for reason in FINISH_REASONS:
            self._success.labels(model, reason)

    def watch(self, stats: Callable[[], EngineStats], step_failures: Callable[[], int]) -> None:
        """Read the engine's counters at every scrape."""
        self._registry.register(_EngineView(self._model, stats, step_failures))

    def watch_gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Read a number of ours at every scrape."""
        gauge = Gauge(name, text, ("model_name",), registry=self._registry)
        gauge.labels(self._model).set_function(value)

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self._registry)

    def answered(self, route: str, status: int) -> None:
        """An answer was sent; `route` is one of the server's own paths."""
        self._http.labels(self._model, route, str(status)).inc()

    def refused(self, reason: str) -> None:
        """A request was not taken; `reason` is a word of ours."""
        self._refused.labels(self._model, reason).inc()

    def cancelled(self) -> None:
        """A client left before its answer was complete."""
        self._cancelled.inc()

    def first_token(self, seconds: float) -> None:
        """A request got its first token."""
        self._ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A sequence got one more token."""
        self._itl.observe(seconds)

    def ended(self, total: Account, finish_reasons: Iterable[str], seconds: float) -> None:
        """All sequences of a request have ended."""
        if total.outcome is not None:
            self._responses.labels(self._model, total.outcome).inc()
        if Reuse(total.outcome).is_reused:
            self._saved.labels(self._model, "prompt").inc(total.prompt)
            self._saved.labels(self._model, "generation").inc(total.completion)
        else:
            self.num_ended += 1
        self._written.inc(total.written)
        self._prompt.observe(total.prompt)
        self._generated.observe(total.completion)
        self._e2e.observe(seconds)
        for reason in finish_reasons:
            self._success.labels(self._model, reason).inc()


class _TokenTimes(Collector):
    """The histogram that every token of every stream goes to: the library's locks several times a value."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._counts = [0] * (len(_ITL_BUCKETS) + 1)  # not cumulative; the last for all that are longer
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one. Event loop only."""
        self._counts[bisect_left(_ITL_BUCKETS, seconds)] += 1
        self._sum += seconds

    def describe(self) -> Iterable[Metric]:
        """Nothing, as it has no name to clash."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The family."""
        name, text = "vllm:inter_token_latency_seconds", "Between two tokens of a sequence"
        family = HistogramMetricFamily(name, text, labels=("model_name",))
        bounds = [*(str(float(bound)) for bound in _ITL_BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric((self._model,), buckets=buckets, sum_value=self._sum)
        yield family


class _EngineView(Collector):
    """The engine's account as metric families."""

    def __init__(self, model: str, stats: Callable[[], EngineStats], step_failures: Callable[[], int]) -> None:
        self._model, self._stats, self._step_failures = model, stats, step_failures

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known when collected."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families, of one moment."""
        stats = self._stats()
        used = (stats.num_blocks - stats.free_blocks - stats.cached_blocks) / stats.num_blocks
        yield self._gauge("vllm:num_requests_running", "Sequences that take part in steps", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait", stats.num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of blocks held by sequences, 0 to 1", used)
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up", stats.queried_tokens),
            ("vllm:prefix_cache_hits", "Of these, tokens found", stats.hit_tokens),
            ("vllm:prompt_tokens", "Prompt tokens computed or read", stats.prefilled_tokens + stats.cached_tokens),
            ("vllm:prompt_tokens_cached", "Of these, tokens read from cache", stats.cached_tokens),
            ("vllm:generation_tokens", "Tokens generated", stats.sampled_tokens),
            ("vllm:spec_decode_num_draft_tokens", "Drafts computed", stats.drafted_tokens),
            ("vllm:spec_decode_num_accepted_tokens", "Of these, tokens drawn", stats.accepted_tokens),
            ("vllm:num_preemptions", "Preemptions", stats.num_preemptions),
            ("foreword:steps", "Engine steps", stats.num_steps),
            ("foreword:step_failures", "Steps that raised", self._step_failures()),
            ("foreword:recomputed_tokens", "Tokens computed again", stats.recomputed_tokens),
            ("foreword:evicted_blocks", "Cached blocks given up", stats.evicted_blocks),
            ("foreword:copied_blocks", "Blocks copied on write", stats.copied_blocks),
        ):
            family = CounterMetricFamily(name, text, labels=("model_name",))
            family.add_metric((self._model,), value)
            yield family
        blocks = GaugeMetricFamily("foreword:blocks", "KV blocks by state", labels=("model_name", "state"))
        for state, count in (("free", stats.free_blocks), ("held", stats.held_blocks), ("cached", stats.cached_blocks)):
            blocks.add_metric((self._model, state), count)
        yield blocks

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family
