"""The growth row: the same contexts with K and V of 16 and of 8 bits."""

from pathlib import Path

import pytest

from foreword.bench.bench import Bench
from foreword.bench.growth import growth
from foreword.core.errors import InvalidRequestError
from foreword.llm import EngineOptions
from tests.smollm2 import SMOLLM2, needs_smollm2


@needs_smollm2
def test_every_context_has_a_rate_with_each_dtype_and_a_share_of_the_shortest() -> None:
    bench = Bench(SMOLLM2, EngineOptions(threads=2, kv_memory_bytes=24 << 20, max_model_len=512), repeats=2)

    metrics = growth(bench, [150], num_tokens=8)

    rates = {name: metrics[f"{name}_decode_tok_s"] for name in ("f16_64", "f16_150", "int8_64", "int8_150")}
    assert all(isinstance(rate, float) and rate > 0 for rate in rates.values())
    ratios = [name for name in metrics if "_over_" in name]
    assert ratios == ["int8_over_f16_64", "int8_over_f16_150", "f16_150_over_64_ratio", "int8_150_over_64_ratio"]


@pytest.mark.parametrize("contexts", [[], [64], [2000, 3]])
def test_contexts_are_longer_than_the_shortest(contexts: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^lengths: "):
        growth(Bench(Path("never opened"), EngineOptions()), contexts)
