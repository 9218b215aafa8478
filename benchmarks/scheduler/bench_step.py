"""What does deciding a step cost, beside computing it?

Question   microseconds of schedule, build_input_batch and update a step, for 16 running sequences: all decoding, and
           decoding beside a chunk of a new prompt.
Regime     bookkeeping: Python objects, a few NumPy calls a sequence.
Ideal      under 5 % of a step of SmolLM2-135M with 16 sequences, which takes 40 to 60 ms on two cores: 2,000 us.
Run        python benchmarks/scheduler/bench_step.py [MODEL]      with a model: its own step, in the same run
"""

import gc
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field

from foreword.core.config import CacheConfig, PrefixCacheKind, SchedulerConfig
from foreword.core.outputs import SampledToken
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Request, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.kv_cache.manager import KVCacheManager
from foreword.runner.input_batch import build_input_batch
from foreword.scheduler.scheduler import Scheduler

STREAMS = 16
PROMPT = 512
STEPS = 800
VOCABULARY = 49_152


@dataclass(slots=True)
class Parts:
    """Microseconds of each part, one entry a step."""

    schedule: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        """Medians of the parts, median and worst of their sum."""
        sums = [sum(parts) for parts in zip(self.schedule, self.batch, self.update, strict=True)]
        return {
            "schedule_us": statistics.median(self.schedule),
            "build_input_batch_us": statistics.median(self.batch),
            "update_us": statistics.median(self.update),
            "total_us": statistics.median(sums),
            "total_max_us": max(sums),
            "steps": len(sums),
        }


class Stage:
    """Scheduler and manager with made-up tokens in the place of a model."""

    def __init__(self, kind: PrefixCacheKind) -> None:
        self.config = CacheConfig(num_blocks=8192, prefix_cache=kind)
        self.scheduler = Scheduler(SchedulerConfig(max_num_seqs=STREAMS + 1), KVCacheManager(self.config))
        self.rng = random.Random(3)
        self.now = 0

    def add(self, number: int, prompt_len: int, max_tokens: int) -> None:
        """Queue a request of random tokens."""
        prompt = [TokenId(self.rng.randrange(VOCABULARY)) for _ in range(prompt_len)]
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sequence = Sequence(SequenceId(number), RequestId(str(number)), 0, prompt, prompt_len, params, seed=0)
        self.scheduler.add(Request(sequence.request_id, tuple(prompt), params, sequences=[sequence]))

    def step(self, parts: Parts) -> int:
        """One step; returns its tokens."""
        self.now += 1
        begin = time.perf_counter()
        output = self.scheduler.schedule(self.now)
        scheduled = time.perf_counter()
        assert output is not None
        build_input_batch(output, self.config.block_size)
        built = time.perf_counter()
        tokens = {
            s.sequence_id: (SampledToken(TokenId(self.rng.randrange(VOCABULARY))),)
            for s in output.sequences
            if s.samples
        }
        drawn = time.perf_counter()
        self.scheduler.update(output, tokens)
        updated = time.perf_counter()
        parts.schedule.append((scheduled - begin) * 1e6)
        parts.batch.append((built - scheduled) * 1e6)
        parts.update.append((updated - drawn) * 1e6)
        return output.num_tokens


def measure(kind: PrefixCacheKind) -> dict[str, dict[str, float]]:
    """Run 16 streams, then the same beside prompts that arrive one after the other."""
    stage = Stage(kind)
    for number in range(STREAMS):
        stage.add(number, PROMPT, 2 * STEPS)
    while stage.step(Parts()) != STREAMS:
        pass
    gc.collect()
    decoding, chunking = Parts(), Parts()
    for _ in range(STEPS):
        assert stage.step(decoding) == STREAMS
    for number in range(STREAMS, STREAMS + 100):
        stage.add(number, PROMPT - STREAMS, 1)
        stage.step(chunking)
    return {"decode": decoding.medians(), "decode_and_chunk": chunking.medians()}


def model_step_ms(model: str) -> float:
    """Milliseconds a step of the real model with as many streams, all decoding, at contexts near those above."""
    from foreword.llm import LLM

    with LLM(model, prefix_cache="none", max_num_seqs=STREAMS) as llm:
        rng = random.Random(5)
        prompts = [{"prompt_token_ids": [rng.randrange(1000, 2000) for _ in range(PROMPT)]} for _ in range(STREAMS)]
        walls = []
        for num_tokens in (2, 34):
            started = time.perf_counter()
            llm.generate(prompts, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True))
            walls.append(time.perf_counter() - started)
    return (walls[1] - walls[0]) / 32 * 1e3


def main() -> None:
    """Print a table, and JSON on the last line."""
    kinds: tuple[PrefixCacheKind, ...] = ("radix", "hash", "none")
    rows = {kind: measure(kind) for kind in kinds}
    step_ms = model_step_ms(sys.argv[1]) if len(sys.argv) > 1 else None
    for kind, row in rows.items():
        for name, figures in row.items():
            share = "" if step_ms is None else f"  {figures['total_us'] / step_ms / 10:.2f} % of a step"
            print(f"{kind:6} {name:17}", "  ".join(f"{k} {v:,.0f}" for k, v in figures.items()) + share)
    if step_ms is not None:
        print(f"the model's step, {STREAMS} streams: {step_ms:.1f} ms")
    print(json.dumps({"benchmark": "step", "streams": STREAMS, "model_step_ms": step_ms, "rows": rows}))


if __name__ == "__main__":
    main()
