"""The rerank row: what must be computed once is, and the numbers say so."""

from pathlib import Path

from foreword.bench.bench import Bench
from foreword.bench.rerank import rerank
from foreword.llm import EngineOptions
from tests.llm.rerank_model import rerank_model


def test_the_opening_is_computed_once_and_the_scores_are_those_of_another_way(tmp_path: Path) -> None:
    options = EngineOptions(threads=1, kv_memory_bytes=16 << 20)
    bench = Bench(rerank_model(tmp_path, max_position=2048), options, repeats=1)

    metrics = rerank(bench, num_passages=4, passage_tokens=60)

    assert metrics["differing_scores"] == 0
    assert isinstance(metrics["reference_error"], float)
    assert metrics["reference_error"] < 1e-6
    counts = {name: metrics[name] for name in ("computed_tokens", "once_tokens", "prompt_tokens", "opening_tokens")}
    assert all(isinstance(count, int) for count in counts.values())
    assert counts["opening_tokens"] > 1000  # type: ignore[operator]  # checked above
    assert counts["once_tokens"] == counts["prompt_tokens"] - 3 * counts["opening_tokens"]  # type: ignore[operator]
    # Passages that begin with the same letters share those too.
    assert counts["once_tokens"] - 60 <= counts["computed_tokens"] <= counts["once_tokens"]  # type: ignore[operator]
