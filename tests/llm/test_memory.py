"""Memory is what was stated: the pool to the byte, the process within five per cent."""

import json
import subprocess
import sys

import pytest
from tests.factories import tiny_config
from tests.smollm2 import SMOLLM2, needs_smollm2

from foreword import LLM
from foreword.core.config import CacheConfig, KVDtype
from foreword.core.errors import CapacityError, InvalidRequestError
from foreword.runner.kv_storage import KVStorage, block_bytes, pool_bytes

MIB = 1 << 20
OVERHEAD_BYTES = 70 * MIB
"""Interpreter, NumPy, 49,152 tokens and the buffers of a step, where ids are sent; docs/performance.md."""

_RUN = """
import json, sys
from pathlib import Path
from foreword import LLM, SamplingParams

llm = LLM(sys.argv[1], max_model_len=4096)
prompts = [{"prompt_token_ids": [(7 * i + 13 * k) % 40000 for i in range(1000)]} for k in range(8)]
llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2))
stats, summary = llm.stats(), llm.summary
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
touched = (stats.num_blocks - stats.free_blocks) * summary.block_size * summary.kv_bytes_per_token
print(json.dumps({"peak": int(peak.split()[1]) * 1024, "touched": touched, "weights": summary.weight_bytes}))
"""


@pytest.mark.parametrize(
    ("kv_dtype", "head_bytes"), [("f32", 4 * 16), ("f16", 2 * 16), ("int16", 2 * 16 + 4), ("int8", 16 + 4)]
)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("block_size", [8, 16, 64])
def test_pool_bytes_are_the_formula_exactly(
    kv_dtype: KVDtype, head_bytes: int, num_heads: int, num_kv_heads: int, block_size: int
) -> None:
    model = tiny_config(num_heads=num_heads, num_kv_heads=num_kv_heads)
    cache = CacheConfig(num_blocks=37, block_size=block_size, kv_dtype=kv_dtype)

    storage = KVStorage(model, cache)

    expected = 2 * head_bytes * model.num_layers * 37 * block_size * num_kv_heads
    real = sum(storage.k_cache(i).nbytes + storage.v_cache(i).nbytes for i in range(model.num_layers))
    assert real == storage.num_bytes == pool_bytes(model, cache) == 37 * block_bytes(model, cache) == expected


@needs_smollm2
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_peaks_at_weights_pool_and_stated_overhead() -> None:
    done = subprocess.run([sys.executable, "-c", _RUN, str(SMOLLM2)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)

    expected = found["weights"] + found["touched"] + OVERHEAD_BYTES

    assert abs(found["peak"] - expected) <= 0.05 * expected, found


@needs_smollm2
@pytest.mark.parametrize("token_budget", [10**12, 10**20])
def test_a_step_too_large_for_memory_is_refused_in_one_line(token_budget: int) -> None:
    with pytest.raises(CapacityError, match=r"^token_budget: .* do not fit in memory$"):
        LLM(SMOLLM2, token_budget=token_budget, max_model_len=64)


@needs_smollm2
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kv_memory", "1G"),
        ("kv_memory", 1.5e8),
        ("kv_memory", float("nan")),
        ("kv_memory", True),
        ("block_size", 16.0),
        ("kv_dtype", []),
        ("kv_cache", "no"),
        ("kv_cache", None),
        ("debug", "no"),
    ],
)
def test_an_option_of_another_kind_is_refused_by_name(option: str, value: object) -> None:
    field = "kv_memory_bytes" if option == "kv_memory" else option
    with pytest.raises(InvalidRequestError, match=f"^{option}: expected "):
        LLM(SMOLLM2, **{field: value})
