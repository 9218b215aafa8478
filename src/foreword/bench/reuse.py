"""Rows about prefixes that come again. Without a prefix cache they show what reading everything again costs.

warm          one long prefix, asked twice
burst         many requests over one prefix, cache on against cache off, interleaved
interleaved   several prefixes in turn: none may push another out while all fit
"""

import statistics
import time
from collections.abc import Sequence

from foreword.bench.bench import Bench, first_token_s, fixed_length, timed
from foreword.bench.result import Metrics
from foreword.llm import LLM, RequestOutput

WARM_PREFIX, WARM_OWN = 2000, 32
BURST_REQUESTS, BURST_PREFIX, BURST_OWN, BURST_TOKENS, BURST_AT_ONCE = 32, 1024, 64, 16, 8
INTERLEAVED_PREFIXES, INTERLEAVED_LENGTH, INTERLEAVED_OWN, INTERLEAVED_ROUNDS = 8, 1000, 32, 4


def warm(bench: Bench) -> Metrics:
    """TTFT of 2,000 + 32 tokens when nothing, and when the first 2,000, were read before."""
    cold_s, warm_s, cached = [], [], []
    for _ in bench.rounds("warm"):
        prefix = bench.prompt(WARM_PREFIX)
        cold_s.append(first_token_s(timed(bench.llm, prefix + bench.prompt(WARM_OWN), 1)))
        second = timed(bench.llm, prefix + bench.prompt(WARM_OWN), 1)
        warm_s.append(first_token_s(second))
        cached.append(second.output.usage.cached_tokens if second.output else 0)
    return {
        "cold_ttft_s": statistics.median(cold_s),
        "warm_ttft_s": statistics.median(warm_s),
        "cold_over_warm": statistics.median(c / w for c, w in zip(cold_s, warm_s, strict=True)),
        "cached_tokens": min(cached),
        "repeats": bench.repeats,
    }


def burst(bench: Bench) -> Metrics:
    """32 requests, 8 at a time: one prefix of 1,024 tokens, 64 own tokens and 16 new ones each."""
    with_cache = bench.open(max_num_seqs=BURST_AT_ONCE)
    without = bench.open(max_num_seqs=BURST_AT_ONCE, prefix_cache="none")
    walls: list[float] = []
    walls_off: list[float] = []
    prefilled: list[int] = []
    cached: list[int] = []
    for _ in bench.rounds("burst"):
        prefix = bench.prompt(BURST_PREFIX)
        prompts = [prefix + bench.prompt(BURST_OWN) for _ in range(BURST_REQUESTS)]
        wall, outputs = _run_burst(with_cache, prompts)
        walls.append(wall)
        prefilled.append(sum(output.usage.computed_tokens for output in outputs))
        cached.append(sum(output.usage.cached_tokens for output in outputs))
        walls_off.append(_run_burst(without, prompts)[0])
    return {
        "wall_s": statistics.median(walls),
        "wall_cache_off_s": statistics.median(walls_off),
        "cache_off_over_on": statistics.median(off / on for on, off in zip(walls, walls_off, strict=True)),
        "prefilled_tokens": max(prefilled),
        "cached_tokens": min(cached),
        "prompt_tokens": BURST_REQUESTS * (BURST_PREFIX + BURST_OWN),
        "repeats": bench.repeats,
    }


def interleaved(bench: Bench) -> Metrics:
    """Eight prefixes of 1,000 tokens in turn, four rounds, each time with 32 own tokens."""
    llm = bench.open()
    prefixes = [bench.prompt(INTERLEAVED_LENGTH) for _ in range(INTERLEAVED_PREFIXES)]
    ttft_s: list[list[float]] = []
    cached: list[list[int]] = []
    for number in range(INTERLEAVED_ROUNDS):
        bench.tell(f"interleaved · round {number + 1} of {INTERLEAVED_ROUNDS}")
        clocks = [timed(llm, prefix + bench.prompt(INTERLEAVED_OWN), 1) for prefix in prefixes]
        ttft_s.append([first_token_s(clock) for clock in clocks])
        cached.append([clock.output.usage.cached_tokens if clock.output else 0 for clock in clocks])
    later = [value for values in ttft_s[1:] for value in values]
    return {
        "cold_ttft_s": statistics.median(ttft_s[0]),
        "warm_ttft_s": statistics.median(later),
        "cached_tokens": min(value for values in cached[1:] for value in values),
        "cached_tokens_by_round": [sum(values) for values in cached],
    }


def _run_burst(llm: LLM, prompts: Sequence[list[int]]) -> tuple[float, list[RequestOutput]]:
    started = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], fixed_length(BURST_TOKENS))
    return time.perf_counter() - started, outputs
