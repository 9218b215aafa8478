"""The growth row: the same contexts with every dtype of K and V that is compared."""

from pathlib import Path

import pytest

from foreword.bench.bench import Bench
from foreword.bench.growth import KV_DTYPES, growth
from foreword.core.errors import InvalidRequestError
from foreword.llm import EngineOptions
from tests.smollm2 import SMOLLM2, needs_smollm2

ALL_RATES = [f"{kv_dtype}_{length}" for kv_dtype in KV_DTYPES for length in (64, 150)]


@needs_smollm2
def test_every_context_has_a_rate_with_each_dtype_and_a_share_of_the_shortest() -> None:
    bench = Bench(SMOLLM2, EngineOptions(threads=2, kv_memory_bytes=24 << 20, max_model_len=512), repeats=2)

    metrics = growth(bench, [150], num_tokens=8)

    rates = {name: metrics[f"{name}_decode_tok_s"] for name in ALL_RATES}
    assert all(isinstance(rate, float) and rate > 0 for rate in rates.values())
    ratios = [name for name in metrics if "_over_" in name]
    over_f16 = [f"{kv_dtype}_over_f16_{length}" for length in (64, 150) for kv_dtype in ("int16", "int8")]
    assert ratios == over_f16 + [f"{kv_dtype}_150_over_64_ratio" for kv_dtype in KV_DTYPES]


@pytest.mark.parametrize("contexts", [[], [64], [2000, 3]])
def test_contexts_are_longer_than_the_shortest(contexts: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^lengths: "):
        growth(Bench(Path("never opened"), EngineOptions()), contexts)
