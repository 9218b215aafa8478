"""Claims about counts: the real scheduler, block pool and planner, with no model behind them."""

import math
from collections.abc import Sequence as Row

from foreword.bench.length_mix import AZURE_CONVERSATION, truncated
from foreword.bench.waste import run_lengths
from foreword.core.config import CacheConfig, ModelConfig, SchedulerConfig
from foreword.core.errors import InvariantError
from foreword.core.outputs import SampledToken
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Request, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.demo.claim import Bar, Claim
from foreword.kv_cache.manager import KVCacheManager
from foreword.plan.geometry import uniform
from foreword.plan.lengths import Lengths
from foreword.plan.plan import PlanOptions, make_plan
from foreword.runner.kv_storage import KVStorage
from foreword.scheduler.scheduler import Scheduler

PROMPT, GENERATED = 1000, 100
SWEEP = (64, 128, 256, 512)
CONTEXT = 4096  # LLaMA-2's, the common one when the trace was recorded
_TOKEN = TokenId(7)
_TOLERANCE = 0.1  # of a fitted exponent: lower powers still show at these lengths


def naive_loop() -> Claim:
    """Token computations of 1,000 prompt and 100 generated tokens, with and without a KV cache."""
    cached = sum(tokens for tokens, _ in run_steps(PROMPT, GENERATED))
    naive = sum(tokens for tokens, _ in run_steps(PROMPT, GENERATED, recompute_all=True))
    return Claim(
        "Without a KV cache, 1,000 prompt + 100 new tokens cost about 105,000 token computations; with it 1,099",
        "104,950 and 1,099",
        f"{naive:,} and {cached:,}",
        naive == 104_950 and cached == 1_099,
        [Bar("recompute", naive, f"{naive:,}"), Bar("KV cache", cached, f"{cached:,}")],
    )


def step_cost() -> Claim:
    """Exponents of attended pairs over length, fitted to a sweep."""
    steps = [fitted([run_steps(n, 2, recompute_all=naive)[-1][1] for n in SWEEP]) for naive in (True, False)]
    totals = [
        fitted([sum(pairs for _, pairs in run_steps(n, n, recompute_all=naive)) for n in SWEEP])
        for naive in (True, False)
    ]
    found = (*steps, *totals)
    return Claim(
        "Cost of a step falls from O(N²) to O(N), of a whole answer from O(L³) to O(L²)",
        "exponents 2, 1; 3, 2",
        "exponents {:.2f}, {:.2f}; {:.2f}, {:.2f}".format(*found),
        all(abs(got - wanted) < _TOLERANCE for got, wanted in zip(found, (2, 1, 3, 2), strict=True)),
        note=f"attended pairs counted over {SWEEP[0]} to {SWEEP[-1]} tokens",
    )


def kv_bytes() -> Claim:
    """The planner's bytes against the pool's real arrays, for MHA, GQA and MQA."""
    planned, allocated = [], []
    for kv_heads in (8, 2, 1):
        geometry = uniform(name="", layers=4, heads=8, kv_heads=kv_heads, head_dim=64)
        options = PlanOptions(memory_bytes=2**40, lengths=Lengths.of([512]), concurrency=(4,), kv_dtype="f16")
        (row,) = make_plan(geometry, options).concurrency
        planned.append(row.paged_bytes)
        storage = KVStorage(_model_config(kv_heads), CacheConfig(num_blocks=row.num_blocks, kv_dtype="f16"))
        allocated.append(sum(storage.k_cache(n).nbytes + storage.v_cache(n).nbytes for n in range(4)))
    return Claim(
        "K and V are stored, Q never: 2 · bytes · layers · tokens · kv_heads · head_dim",
        "plan = pool, for MHA, GQA, MQA",
        ", ".join(f"{size:,}" for size in allocated) + " bytes",
        planned == allocated == [2 * 2 * 4 * 2048 * heads * 64 for heads in (8, 2, 1)],
        [
            Bar(name, size, f"{size / 2**20:.1f} MiB")
            for name, size in zip(("MHA", "GQA", "MQA"), allocated, strict=True)
        ],
        "4 layers, 2,048 tokens, f16",
    )


def llama_2_70b() -> Claim:
    """The planner on the best known case of grouped heads."""
    geometry = uniform(name="", layers=80, heads=64, kv_heads=8, head_dim=128)
    options = PlanOptions(memory_bytes=2**40, lengths=Lengths.of([4096]), kv_dtype="f16")
    (row,) = make_plan(geometry, options).requests
    kv, q = row.exact_bytes / 2**30, (row.with_q_bytes - row.exact_bytes) / 2**30
    without = row.without_gqa_bytes / 2**30
    return Claim(
        "LLaMA-2-70B, 8 of 64 heads: K and V 1.25 GiB at 4,096 tokens f16; caching Q too would add 5 GiB",
        "1.25 GiB and 5 GiB",
        f"{kv:.2f} GiB and {q:.2f} GiB",
        (kv, q) == (1.25, 5.0),
        [
            Bar("K, V, 8 heads", kv, f"{kv:.2f} GiB"),
            Bar("and Q", kv + q, f"{kv + q:.2f} GiB"),
            Bar("K, V, 64 heads", without, f"{without:.2f} GiB"),
        ],
        f"{row.exact_bytes // 4096:,} bytes a token",
    )


def paging() -> tuple[Claim, Claim]:
    """Use of reserved memory on a published mix of lengths: one block a request against blocks of 16."""
    slots = run_lengths(truncated(AZURE_CONVERSATION, CONTEXT), block_size=16, context=CONTEXT)
    used, waste, ratio = 1 - slots.contiguous_waste_ratio, slots.waste_ratio, slots.contiguous / slots.paged
    note = f"Azure conversation trace 2023, a context of {CONTEXT:,}"
    return (
        Claim(
            "Contiguous reservation uses 20 to 40 % of its memory; paging wastes under 4 %",
            "20 to 40 %, under 4 %",
            f"{used:.1%}, {waste:.2%}",
            0.2 <= used <= 0.4 and waste < 0.04,
            [
                Bar("contiguous", 100 * used, f"{used:.0%} used"),
                Bar("paged", 100 * (1 - waste), f"{1 - waste:.1%} used"),
            ],
            note,
        ),
        Claim(
            "So the same memory holds 2 to 4 times the requests",
            "2 to 4 times",
            f"{ratio:.2f} times",
            2 <= ratio <= 4,
            [Bar("contiguous", 1, "1"), Bar("paged", ratio, f"{ratio:.1f}")],
            "same run",
        ),
    )


def run_steps(prompt: int, generated: int, *, recompute_all: bool = False) -> list[tuple[int, int]]:
    """Tokens computed and pairs attended in each step of one request, as the real scheduler plans it."""
    total = prompt + generated
    manager = KVCacheManager(CacheConfig(num_blocks=total // 16 + 2))
    limits = SchedulerConfig(max_num_seqs=1, token_budget=total, max_model_len=total, recompute_all=recompute_all)
    scheduler = Scheduler(limits, manager)
    request_id, params = RequestId("0"), SamplingParams(max_tokens=generated, ignore_eos=True)
    sequence = Sequence(SequenceId(0), request_id, 0, [_TOKEN] * prompt, prompt, params, seed=0)
    scheduler.add(Request(request_id, (_TOKEN,) * prompt, params, sequences=[sequence]))
    steps: list[tuple[int, int]] = []
    while scheduler.has_unfinished:
        output = scheduler.schedule(len(steps) + 1)
        if output is None:
            raise InvariantError("a request waits, but can compute nothing")
        pairs = sum(
            len(s.token_ids) * s.start + len(s.token_ids) * (len(s.token_ids) + 1) // 2 for s in output.sequences
        )
        steps.append((output.num_tokens, pairs))
        scheduler.update(output, {s.sequence_id: (SampledToken(_TOKEN),) for s in output.sequences if s.samples})
    return steps


def fitted(costs: Row[float]) -> float:
    """Slope of a line through cost over length, both in logarithms: the exponent of growth."""
    xs, ys = [math.log(n) for n in SWEEP], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - mean_x) ** 2 for x in xs)


def _model_config(kv_heads: int) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=16,
        hidden_size=512,
        num_layers=4,
        num_heads=8,
        num_kv_heads=kv_heads,
        head_dim=64,
        intermediate_size=16,
        max_position=2048,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
    )
