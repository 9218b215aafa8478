"""Rows about one thing each: decode, prefill and batched decode, without any shared prefix.

decode    bound by memory bandwidth: every weight is read once a token
prefill   bound by arithmetic: every weight is used for many tokens
batch     between the two: weights are read once for all sequences of a step
"""

import statistics
import time
from collections.abc import Sequence

from foreword.bench.bench import Bench, first_token_s, fixed_length, timed, with_spread
from foreword.bench.result import Metrics
from foreword.core.errors import InvalidRequestError, InvariantError

DECODE_PROMPT, DECODE_TOKENS = 64, 256
PREFILL_LENGTHS = (512, 2048, 6000)
BATCH_STREAMS, BATCH_PROMPT, BATCH_TOKENS = 16, 64, 128


def decode(bench: Bench) -> Metrics:
    """One stream: 64 prompt tokens, then 256 one by one."""
    clocks = [timed(bench.llm, bench.prompt(DECODE_PROMPT), DECODE_TOKENS) for _ in bench.rounds("decode")]
    rates = [clock.decode_tok_s for clock in clocks if clock.decode_tok_s is not None]
    return {
        **with_spread("decode_tok_s", rates),
        "ttft_s": statistics.median(first_token_s(clock) for clock in clocks),
        "repeats": bench.repeats,
    }


def prefill(bench: Bench, lengths: Sequence[int] = PREFILL_LENGTHS) -> Metrics:
    """Time to the first token of prompts never seen before, by length."""
    if not lengths or min(lengths) < 1:
        raise InvalidRequestError("lengths", "positive numbers of tokens", list(lengths))
    ttft: dict[str, float] = {}
    rate: dict[str, float] = {}
    spread: dict[str, list[float]] = {}
    for length in lengths:
        times = []
        for _ in bench.rounds(f"prefill {length:,}"):
            clock = timed(bench.llm, bench.prompt(length), 1)
            times.append(first_token_s(clock))
        ttft[str(length)] = statistics.median(times)
        rate[str(length)] = length / ttft[str(length)]
        spread[str(length)] = [min(times), max(times)]
    return {"prefill_tok_s": rate, "ttft_s": ttft, "ttft_s_min_max": spread, "repeats": bench.repeats}


def batch(bench: Bench) -> Metrics:
    """16 streams at once: 64 prompt tokens and 128 new ones each; rate over all, prompts' time included."""
    llm = bench.llm
    walls = []
    for _ in bench.rounds("batch"):
        prompts = [{"prompt_token_ids": bench.prompt(BATCH_PROMPT)} for _ in range(BATCH_STREAMS)]
        started = time.perf_counter()
        outputs = llm.generate(prompts, fixed_length(BATCH_TOKENS))
        walls.append(time.perf_counter() - started)
        if sum(output.usage.completion_tokens for output in outputs) != BATCH_STREAMS * BATCH_TOKENS:
            raise InvariantError("a stream ended early")
    rates = [BATCH_STREAMS * BATCH_TOKENS / wall for wall in walls]
    return {
        **with_spread("batch_tok_s", rates),
        "wall_s": statistics.median(walls),
        "streams_at_once": min(BATCH_STREAMS, bench.options.max_num_seqs),
        "repeats": bench.repeats,
    }
