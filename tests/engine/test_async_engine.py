"""`AsyncEngine`: many callers, one thread, and nothing left behind whoever leaves and whatever fails."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from tests.factories import tiny_model

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import (
    InvalidRequestError,
    QueueTimeoutError,
    StalledError,
    StepFailedError,
    UnavailableError,
)
from foreword.core.outputs import SequenceStep
from foreword.core.sampling_params import SamplingParams
from foreword.engine import engine_stream
from foreword.engine.async_engine import AsyncEngine
from foreword.engine.engine import Engine
from foreword.engine.engine_request import EngineRequest
from foreword.engine.engine_stream import MAX_SHORTCUTS, EngineStream
from foreword.models.base import Model
from foreword.ops.cpu import CpuBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

VOCAB = 64
Stream = EngineStream[SequenceStep]


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return CpuBackend(num_threads=1)


@pytest.fixture(scope="module")
def model(backend: CpuBackend, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"), backend, vocab_size=VOCAB, max_position=4096)


class Rig:
    """An engine whose steps can be slowed or made to fail."""

    def __init__(self, model: Model, backend: CpuBackend, *, num_blocks: int = 400, max_num_seqs: int = 16) -> None:
        cache = CacheConfig(num_blocks=num_blocks, prefix_cache="radix", debug=True)
        config = SchedulerConfig(max_model_len=4096, max_num_seqs=max_num_seqs)
        self.runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
        self.engine = Engine(self.runner, cache, config)
        self.fail_next = False
        execute = self.runner.execute

        def guarded(*args: Any) -> Any:
            if self.fail_next:
                self.fail_next = False
                raise RuntimeError("injected")
            return execute(*args)

        self.runner.execute = guarded  # type: ignore[method-assign, assignment]

    def run(self, scenario: Callable[[AsyncEngine], Awaitable[None]], **options: Any) -> None:
        """Start, play, close; then nothing may be held."""

        async def play() -> None:
            engine = AsyncEngine(self.engine, **options)
            engine.start()
            try:
                await asyncio.wait_for(scenario(engine), 60)
            finally:
                await engine.close()

        asyncio.run(play())
        self.engine.check_invariants()
        assert self.engine.stats().held_blocks == 0
        assert not self.engine.has_unfinished


@pytest.fixture
def rig(model: Model, backend: CpuBackend) -> Rig:
    return Rig(model, backend)


def ask(engine: AsyncEngine, *prompts: list[int], max_tokens: int = 8, **params: Any) -> Stream:
    chosen = SamplingParams(**{"temperature": 0, "ignore_eos": True, "max_tokens": max_tokens, **params})
    requests = [
        EngineRequest(request_id=engine.new_request_id(), prompt_token_ids=prompt, params=chosen) for prompt in prompts
    ]
    return engine.submit(requests, lambda step: step)


async def read(stream: Stream) -> list[SequenceStep]:
    steps = []
    while not stream.is_over:
        steps += await stream.take()
    return steps


def tokens(steps: list[SequenceStep]) -> list[int]:
    return [token.token_id for step in steps for token in step.new_tokens]


def test_steps_shorter_than_the_loops_work_come_many_at_once(rig: Rig) -> None:
    """A call for each step would keep a loop that is slower than the engine from everything else, for seconds."""
    calls: list[list[SequenceStep]] = []

    async def scenario(engine: AsyncEngine) -> None:
        streams = [ask(engine, [start, 2, 3], max_tokens=40) for start in range(8)]
        for stream in streams:
            stream.on_news = lambda stream=stream: calls.append(stream.take_now())
        while engine.stats.num_steps == 0 or engine.stats.num_running:  # the loop is busy for all of the steps
            time.sleep(0.001)
        while not all(stream.is_over for stream in streams):
            await asyncio.sleep(0)

    rig.run(scenario)

    assert sum(map(len, calls)) == 8 * 40
    assert len(calls) == 8 * 2  # all that came, and the end


def test_first_items_are_taken_before_the_next_step(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """That step wants every core; what a reader does with a first token takes a fraction of it."""
    monkeypatch.setattr("foreword.engine.async_engine.HAND_OVER_S", 30.0)  # however late this machine's loop is
    taken: list[SequenceStep] = []
    seen: list[int] = []
    execute = rig.runner.execute

    def watched(*args: Any) -> Any:
        seen.append(len(taken))
        return execute(*args)

    rig.runner.execute = watched  # type: ignore[method-assign, assignment]

    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1, 2, 3], max_tokens=4)
        while not stream.is_over:
            taken.extend(await stream.take())

    rig.run(scenario)

    assert seen[:2] == [0, 1]


def test_a_loop_that_is_late_for_first_items_holds_up_nothing(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1, 2, 3], max_tokens=40)
        while engine.stats.num_steps == 0 or engine.stats.num_running:  # the loop is busy for all of the steps
            time.sleep(0.001)
        assert len(tokens(await read(stream))) == 40

    rig.run(scenario)


def test_streams_give_what_the_engine_gives_alone(rig: Rig, model: Model, backend: CpuBackend) -> None:
    expected = []
    for start in range(4):
        alone = Rig(model, backend).engine
        alone.add("a", list(range(start, 40)), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
        steps: list[SequenceStep] = []
        while alone.has_unfinished:
            steps += alone.step().sequences
        expected.append(tokens(steps))

    async def scenario(engine: AsyncEngine) -> None:
        streams = [ask(engine, list(range(start, 40))) for start in range(4)]
        assert [tokens(steps) for steps in await asyncio.gather(*map(read, streams))] == expected

    rig.run(scenario)


def test_one_stream_carries_several_requests_and_ends_with_the_last(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1, 2], [3, 4], [5, 6], n=2)

        steps = await read(stream)

        ends = [(s.request_id, s.index) for s in steps if s.finish_reason is not None]
        assert sorted(ends) == [(r, i) for r in stream.request_ids for i in (0, 1)]
        assert len(tokens(steps)) == 3 * 2 * 8

    rig.run(scenario)


def test_a_closed_stream_gives_its_blocks_back_while_others_go_on(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        gone, stays = ask(engine, [1] * 50, max_tokens=3000), ask(engine, [2] * 50, max_tokens=60)
        await gone.take()

        gone.close()

        assert gone.is_over
        stats = await engine.run(lambda e: e.stats())
        assert stats.num_running + stats.num_waiting <= 1
        assert len(tokens(await read(stays))) == 60

    rig.run(scenario)


def test_a_refusal_comes_out_of_the_stream_and_starts_nothing(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1, 2], [VOCAB])

        with pytest.raises(InvalidRequestError):
            await read(stream)
        assert not await engine.run(lambda e: e.has_unfinished)

    rig.run(scenario)


def test_a_failed_step_ends_its_requests_with_an_error_and_the_engine_goes_on(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1, 2, 3], max_tokens=500)
        await stream.take()
        rig.fail_next = True

        with pytest.raises(StepFailedError, match="RuntimeError"):
            await read(stream)

        assert engine.step_failures == 1
        assert engine.is_alive
        assert len(tokens(await read(ask(engine, [1, 2, 3])))) == 8

    rig.run(scenario)


def test_a_request_whose_text_cannot_be_made_fails_alone(rig: Rig) -> None:
    def broken(step: SequenceStep) -> SequenceStep:
        raise ValueError("no text")

    async def scenario(engine: AsyncEngine) -> None:
        params = SamplingParams(max_tokens=50, ignore_eos=True)
        request = EngineRequest(request_id="bad", prompt_token_ids=[1], params=params)
        stream, other = engine.submit([request], broken), ask(engine, [2])

        with pytest.raises(ValueError, match="no text"):
            await read(stream)
        assert len(tokens(await read(other))) == 8

    rig.run(scenario)


def test_a_bookkeeping_failure_ends_the_engine_and_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_stats() -> Any:
        raise RuntimeError("injected")

    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1, 2, 3], max_tokens=500)
        await stream.take()
        with monkeypatch.context() as patch:
            patch.setattr(rig.engine, "stats", broken_stats)
            with pytest.raises(StepFailedError):
                await read(stream)
        assert not engine.is_alive
        with pytest.raises(UnavailableError):
            ask(engine, [1])
        with pytest.raises(UnavailableError):
            await engine.run(lambda e: None)
        rig.engine.abort_all()

    rig.run(scenario)


def test_a_request_that_is_never_started_is_refused_in_time(model: Model, backend: CpuBackend) -> None:
    rig = Rig(model, backend, max_num_seqs=1)

    async def scenario(engine: AsyncEngine) -> None:
        first = ask(engine, [1, 2], max_tokens=2000)
        await first.take()
        with pytest.raises(QueueTimeoutError):
            await read(ask(engine, [3, 4]))
        first.close()

    rig.run(scenario, queue_timeout_s=0.05)


def test_a_reader_that_falls_behind_is_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_stream, "MAX_BUFFERED", 20)

    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1, 2], max_tokens=400)
        while not await engine.run(lambda e: not e.has_unfinished):
            await asyncio.sleep(0)

        with pytest.raises(StalledError):
            await read(stream)

    rig.run(scenario)


def test_draining_ends_what_waits_and_lets_finish_what_runs(model: Model, backend: CpuBackend) -> None:
    rig = Rig(model, backend, max_num_seqs=1)

    async def scenario(engine: AsyncEngine) -> None:
        running, waiting = ask(engine, [1, 2], max_tokens=60), ask(engine, [3, 4])
        first = await running.take()

        await engine.drain(30)

        assert len(tokens(first + await read(running))) == 60
        with pytest.raises(UnavailableError):
            await read(waiting)
        with pytest.raises(UnavailableError):
            ask(engine, [5])

    rig.run(scenario)


def test_draining_without_grace_ends_everything_with_an_error(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1, 2], max_tokens=3000)
        await stream.take()

        await engine.drain(0)

        with pytest.raises(UnavailableError):
            await read(stream)

    rig.run(scenario)


def test_waiting_for_the_next_item_ends_in_time(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = ask(engine, [1] * 3000, max_tokens=1)

        assert await stream.take(timeout_s=0.001) == []
        assert len(tokens(await read(stream))) == 1

    rig.run(scenario)


def test_an_idle_engine_costs_no_cpu_time(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        await read(ask(engine, [1, 2]))
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.05

    rig.run(scenario)


def test_a_storm_of_requests_and_departures_leaves_nothing(model: Model, backend: CpuBackend) -> None:
    rig = Rig(model, backend, num_blocks=60, max_num_seqs=4)

    async def scenario(engine: AsyncEngine) -> None:
        async def client(number: int) -> None:
            stream = ask(engine, [number % 3] * (20 + number), max_tokens=1 + number % 9, n=1 + number % 3)
            for _ in range(number % 5):
                await stream.take(timeout_s=0.01)
            if number % 2:
                stream.close()
            await read(stream)

        await asyncio.gather(*(client(number) for number in range(80)))
        await engine.run(lambda e: e.check_invariants())
        assert engine.num_open == 0

    rig.run(scenario)


def test_a_thread_left_by_its_loop_can_still_be_stopped(model: Model, backend: CpuBackend) -> None:
    rig = Rig(model, backend)
    never_started = AsyncEngine(rig.engine)
    engine = AsyncEngine(rig.engine)

    async def leave() -> None:
        engine.start()

    asyncio.run(leave())
    assert engine.is_alive
    for each in (never_started, engine, engine):
        each.stop()

    assert not engine.is_alive
    assert rig.engine.stats().held_blocks == 0


def test_who_waits_is_told_once_there_is_memory_for_telling(rig: Rig) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        loop, num_failures = asyncio.get_running_loop(), iter(range(3))
        tell = loop.call_soon_threadsafe

        def fail_first(call: Callable[..., object], *args: Any) -> asyncio.Handle:
            if next(num_failures, None) is not None:
                raise MemoryError
            return tell(call, *args)

        loop.call_soon_threadsafe = fail_first  # type: ignore[method-assign, assignment]
        steps = await read(ask(engine, [1, 2, 3], max_tokens=4))

        assert len(tokens(steps)) == 4
        assert next(num_failures, None) is None, "it did fail"

    rig.run(scenario)


@pytest.mark.parametrize("num_streams", [1, MAX_SHORTCUTS, MAX_SHORTCUTS + 1])
def test_items_come_in_order_by_whichever_way(rig: Rig, num_streams: int) -> None:
    """A way past the loop that is open now and then, beside a loop that is late now and then."""
    expected: list[list[int]] = []
    rng, got, direct = random.Random(num_streams), [list[SequenceStep]() for _ in range(num_streams)], [0] * num_streams

    execute = rig.runner.execute

    def slow(*args: Any) -> Any:
        time.sleep(0.002)  # a step as long as a real model's: now and then the loop has caught up
        return execute(*args)

    rig.runner.execute = slow  # type: ignore[method-assign, assignment]

    def take(index: int, steps: list[SequenceStep]) -> bool:
        if is_open := rng.random() < 0.7:
            got[index] += steps
            direct[index] += len(steps)
        return is_open

    async def scenario(engine: AsyncEngine) -> None:
        for start in range(num_streams):
            expected.append(tokens(await read(ask(engine, [start, 2, 3], max_tokens=60, temperature=1, seed=7))))
        streams = [ask(engine, [start, 2, 3], max_tokens=60, temperature=1, seed=7) for start in range(num_streams)]
        for index, stream in enumerate(streams):
            stream.on_news = lambda stream=stream, index=index: got[index].extend(stream.take_now())
            stream.shortcut = partial(take, index)
        while not all(stream.is_over for stream in streams):
            time.sleep(rng.choice([0, 0.002]))
            await asyncio.sleep(0)

    rig.run(scenario)

    assert [tokens(steps) for steps in got] == expected
    assert all(direct) if num_streams <= MAX_SHORTCUTS else sum(direct) < 60


def test_a_reader_whose_way_past_the_loop_breaks_fails_alone(rig: Rig) -> None:
    def broken(steps: list[SequenceStep]) -> bool:
        raise ValueError("injected")

    async def scenario(engine: AsyncEngine) -> None:
        bad, good = ask(engine, [1, 2, 3], max_tokens=20), ask(engine, [4, 5, 6], max_tokens=20)
        bad.shortcut = broken
        with pytest.raises(ValueError, match="injected"):
            await read(bad)
        assert len(tokens(await read(good))) == 20

    rig.run(scenario)
