"""The metrics in Prometheus's text format. The only reader of its library, and it is imported at the first scrape."""

from collections.abc import Iterable, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from foreword.server.metrics import Counter, EngineView, Family, Gauge, Histogram

_MODEL = "model_name"


def write_page(families: Sequence[Family], model: str) -> bytes:
    """All families in order, each with the model's name as a label."""
    return generate_latest(_Page(families, model))


class _Page(Collector):
    """The families, for the library to write."""

    def __init__(self, families: Sequence[Family], model: str) -> None:
        self._families, self._model = families, model

    def collect(self) -> Iterable[Metric]:
        """All families, each of one moment."""
        for family in self._families:
            match family:
                case Counter():
                    yield self._counter(family)
                case Histogram():
                    yield self._histogram(family)
                case Gauge():
                    yield self._gauge(family.name, family.text, family.value())
                case EngineView():
                    yield from self._engine(family)

    def _counter(self, counter: Counter) -> Metric:
        written = CounterMetricFamily(counter.name, counter.text, labels=(_MODEL, *counter.labels))
        for label_values, value in counter.values.items():
            written.add_metric((self._model, *label_values), value)
        return written

    def _histogram(self, histogram: Histogram) -> Metric:
        written = HistogramMetricFamily(histogram.name, histogram.text, labels=(_MODEL,))
        written.add_metric((self._model,), buckets=histogram.buckets(), sum_value=histogram.sum)
        return written

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        written = GaugeMetricFamily(name, text, labels=(_MODEL,))
        written.add_metric((self._model,), value)
        return written

    def _engine(self, view: EngineView) -> Iterable[Metric]:
        stats = view.stats()
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
            ("foreword:step_failures", "Steps that raised", view.step_failures()),
            ("foreword:recomputed_tokens", "Tokens computed again", stats.recomputed_tokens),
            ("foreword:evicted_blocks", "Cached blocks given up", stats.evicted_blocks),
            ("foreword:copied_blocks", "Blocks copied on write", stats.copied_blocks),
        ):
            family = CounterMetricFamily(name, text, labels=(_MODEL,))
            family.add_metric((self._model,), value)
            yield family
        blocks = GaugeMetricFamily("foreword:blocks", "KV blocks by state", labels=(_MODEL, "state"))
        for state, count in (("free", stats.free_blocks), ("held", stats.held_blocks), ("cached", stats.cached_blocks)):
            blocks.add_metric((self._model, state), count)
        yield blocks
