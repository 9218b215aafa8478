"""An engine in a process whose memory runs out, as a program: prints what each attempt came to, as JSON.

Each attempt asks for 16 answers at once of a model whose logits are megabytes. Attempt n may take 16 KiB * 2^n more
address space than the process had before it; or, with `failing_malloc.c` preloaded, a number of bytes and a seed as
further arguments, any request for so many bytes may fail.
"""

import asyncio
import ctypes
import json
import random
import resource
import sys
from pathlib import Path

from tests.factories import tiny_model

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.outputs import SequenceStep
from foreword.core.sampling_params import SamplingParams
from foreword.engine.async_engine import AsyncEngine
from foreword.engine.engine import Engine
from foreword.engine.engine_request import EngineRequest
from foreword.engine.engine_stream import EngineStream
from foreword.ops.cpu import CpuBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

NUM_ATTEMPTS, BATCH, ANSWER, VOCAB = 14, 16, 4, 30_000
NUM_FAILING = 60
UNLIMITED = resource.RLIM_INFINITY
STACK_BYTES = 1 << 20


def make_engine(folder: Path) -> Engine:
    """A tiny engine of a large vocabulary, without a cache between attempts."""
    backend = CpuBackend(num_threads=2)
    model = tiny_model(folder, backend, vocab_size=VOCAB)
    # Without debug mode, whose checks ask for memory of their own.
    cache = CacheConfig(num_blocks=400, prefix_cache="none")
    config = SchedulerConfig(max_model_len=512, max_num_seqs=BATCH)
    runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
    return Engine(runner, cache, config)


def limit(more: int | None) -> None:
    """Let the process have so many bytes of address space more; None: all there are."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (UNLIMITED if more is None else now + more, UNLIMITED))


def map_stack() -> None:
    """Let the main thread's stack have been large once.

    The kernel maps it page by page, and where no address space is left for the next page it ends the process with
    SIGSEGV, which is nobody's fault. Other threads' stacks are mapped whole.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    deeper(0)
    sys.setrecursionlimit(before)


def deeper(depth: int) -> int:
    """Call oneself through C until the stack is as large as wanted."""
    if depth % 100 == 0 and stack_bytes() >= STACK_BYTES:
        return depth
    return max([depth], key=lambda depth: deeper(depth + 1))


def stack_bytes() -> int:
    """What is mapped of the main thread's stack."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmStk:")]
    return int(line.split()[1]) << 10


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


async def failing(engine: Engine, least: int, seed: int) -> dict[str, object]:
    """Attempts with all the memory, then with requests that fail at random, until the engine is lost."""
    let_fail = ctypes.CDLL(None).let_fail
    let_fail.argtypes, let_fail.restype = [ctypes.c_uint32, ctypes.c_size_t, ctypes.c_uint64], ctypes.c_uint64
    rng, asynchronous = random.Random(seed), AsyncEngine(engine)
    asynchronous.start()
    found = [await answers(asynchronous)]
    while len(found) <= NUM_FAILING and asynchronous.is_alive:
        let_fail(int(2.0 ** (32 - rng.uniform(2, 14))), least, rng.getrandbits(63))
        found.append(await answers(asynchronous))
        num_failed = let_fail(0, 0, 0)
        if asynchronous.is_alive:
            await asynchronous.run(lambda e: e.check_invariants())
            assert asynchronous.stats.held_blocks == 0
    is_alive = asynchronous.is_alive
    await asynchronous.close()
    return {"attempts": found, "num_failed": num_failed, "is_alive": is_alive}


if __name__ == "__main__":
    map_stack()
    made = make_engine(Path(sys.argv[1]))
    print(json.dumps(asyncio.run(failing(made, *map(int, sys.argv[2:])) if len(sys.argv) > 2 else attempts(made))))
