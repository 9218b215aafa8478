"""An engine in a process whose memory runs out, as a program: prints what each attempt came to, as JSON.

Attempt n may take 16 KiB * 2^n more address space than the process had before it, and asks for 16 answers at once of a
model whose logits are megabytes.
"""

import asyncio
import json
import resource
import sys
from pathlib import Path

from tests.factories import tiny_model

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.outputs import SequenceStep
from foreword.core.sampling_params import SamplingParams
from foreword.engine.async_engine import AsyncEngine, EngineRequest
from foreword.engine.engine import Engine
from foreword.engine.engine_stream import EngineStream
from foreword.ops.cpu import CpuBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

NUM_ATTEMPTS, BATCH, ANSWER, VOCAB = 14, 16, 4, 30_000
UNLIMITED = resource.RLIM_INFINITY


def make_engine(folder: Path) -> Engine:
    """A tiny engine of a large vocabulary, without a cache between attempts."""
    backend = CpuBackend(num_threads=2)
    model = tiny_model(folder, backend, vocab_size=VOCAB)
    cache = CacheConfig(
        num_blocks=400, kv_dtype="f32", prefix_cache="none"
    )  # the checks of debug mode ask for memory of their own
    config = SchedulerConfig(max_model_len=512, max_num_seqs=BATCH)
    runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
    return Engine(runner, cache, config)


def limit(more: int | None) -> None:
    """Let the process have so many bytes of address space more; None: all there are."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (UNLIMITED if more is None else now + more, UNLIMITED))


async def answers(engine: AsyncEngine) -> list[list[int] | str]:
    """16 answers at once; of those that failed the name of the error."""
    streams: list[EngineStream[SequenceStep]] = []
    for number in range(BATCH):
        params = SamplingParams(max_tokens=ANSWER, ignore_eos=True, temperature=1, seed=number, logprobs=5)
        request = EngineRequest(request_id=engine.new_request_id(), prompt_token_ids=[number] * 20, params=params)
        streams.append(engine.submit([request], lambda step: step))
    return [await read(stream) for stream in streams]


async def read(stream: EngineStream[SequenceStep]) -> list[int] | str:
    """The tokens of one answer, or the name of the error that ended it."""
    tokens: list[int] = []
    try:
        while not stream.is_over:
            tokens += [token.token_id for step in await stream.take() for token in step.new_tokens]
    except Exception as error:
        return type(error).__name__
    return tokens


async def attempts(engine: Engine) -> list[list[list[int] | str]]:
    """One for each limit, then one without."""
    found = []
    asynchronous = AsyncEngine(engine)
    asynchronous.start()
    for more in [*(16384 << n for n in range(NUM_ATTEMPTS)), None]:
        limit(more)
        try:
            found.append(await answers(asynchronous))
        finally:
            limit(None)
        assert asynchronous.is_alive
        await asynchronous.run(lambda e: e.check_invariants())
        assert asynchronous.stats.held_blocks == 0
    await asynchronous.close()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attempts(make_engine(Path(sys.argv[1]))))))
