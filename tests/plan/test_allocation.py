"""The plan against what the engine really does, to the byte."""

from pathlib import Path

import pytest

from foreword import LLM, SamplingParams
from foreword.core.config import CacheConfig, KVDtype
from foreword.models.files import open_model_files
from foreword.plan.lengths import Lengths
from foreword.plan.plan import PlanOptions, make_plan
from foreword.plan.source import read_geometry
from foreword.runner.kv_storage import KVStorage
from tests.cli.conftest import write_tokenizer
from tests.factories import tiny_model_files

N, PREFIX, LENGTH, GENERATED = 5, 50, 83, 9
CONFIGURATIONS = [
    (kv_heads, kv_dtype, block_size)
    for kv_heads in (4, 2, 1)
    for kv_dtype in ("f16", "f32", "int16", "int8")
    for block_size in (8, 16, 64)
]


@pytest.mark.parametrize(("kv_heads", "kv_dtype", "block_size"), CONFIGURATIONS)
def test_the_pool_is_as_planned(kv_heads: int, kv_dtype: KVDtype, block_size: int, tmp_path: Path) -> None:
    """MHA, GQA and MQA: planned bytes of the pool, and of what requests hold at most, are the engine's own."""
    path = tiny_model_files(tmp_path, num_kv_heads=kv_heads, vocab_size=257)
    write_tokenizer(path, ("</s>",))
    options = PlanOptions(
        memory_bytes=2**40,
        lengths=Lengths.of([LENGTH + GENERATED - 1]),
        concurrency=(N,),
        kv_dtype=kv_dtype,
        block_size=block_size,
        shared_prefix=PREFIX,
    )
    plan = make_plan(read_geometry(path), options)
    (row,) = plan.concurrency

    with LLM(
        path, kv_dtype=kv_dtype, block_size=block_size, kv_memory_bytes=row.shared_bytes, max_num_seqs=N, threads=1
    ) as llm:
        assert llm.summary.kv_pool_bytes == row.shared_bytes
        assert llm.summary.num_blocks == row.num_blocks
        assert llm.summary.kv_bytes_per_token == plan.bytes_per_token
        held = _most_held(llm, PREFIX // block_size * block_size)
    assert held * plan.block_bytes == row.shared_bytes
    with open_model_files(path) as files:
        storage = KVStorage(
            files.config, CacheConfig(num_blocks=row.num_blocks, block_size=block_size, kv_dtype=kv_dtype)
        )
    arrays = [storage.k_cache(layer) for layer in range(2)] + [storage.v_cache(layer) for layer in range(2)]
    assert sum(array.nbytes for array in arrays) == row.shared_bytes


def _most_held(llm: LLM, shared: int) -> int:
    """Blocks that requests with one prefix hold together, at most; `shared` tokens of it lie in whole blocks."""
    prefix = [2 + i % 50 for i in range(PREFIX)]
    llm.generate({"prompt_token_ids": [*prefix, 1]}, SamplingParams(max_tokens=1))
    prompts = [{"prompt_token_ids": [*prefix, *range(100 + 10 * r, 100 + 10 * r + LENGTH - PREFIX)]} for r in range(N)]
    most = 0

    def look(**_: int) -> None:
        nonlocal most
        most = max(most, llm.stats().held_blocks)

    params = SamplingParams(max_tokens=GENERATED, temperature=0, ignore_eos=True)
    outputs = llm.generate(prompts, params, progress=look)
    # The pool is full to the last block: where the prefix ends within one, its stored tail may have had to go.
    assert all(shared <= output.usage.cached_tokens <= PREFIX for output in outputs)
    return most
