"""An engine for many callers at once: one thread steps it, everybody else only enqueues.

    event loop                               engine thread
    submit ──────── commands ──────────────▶ between two steps: add, abort, whatever was asked
    stream.take ◀── one for what is made ─── step, then `receive` for each sequence that got on

The engine belongs to its thread: whatever touches it is a command, run between two steps. Without work the thread
sleeps on the queue of commands and costs nothing.
"""

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from foreword.core.errors import InvariantError, QueueTimeoutError, StepFailedError, UnavailableError
from foreword.core.outputs import SequenceStep, StepResult
from foreword.engine.engine import Engine
from foreword.engine.engine_request import EngineRequest
from foreword.engine.engine_stream import MAX_SHORTCUTS, EngineStream, take_shortcuts
from foreword.engine.metrics import EngineStats

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
logger = logging.getLogger("foreword.engine")

CLOSE_TIMEOUT_S = 10.0
HAND_OVER_S = 0.002
"""Longest that the next step waits for the loop to pass on first pieces, where few streams run."""
RETRY_S = 0.01
"""Until the loop is told again, where no memory was left for telling it."""


class AsyncEngine:
    """Runs an `Engine` in a thread of its own, for one event loop.

    Construction starts nothing; `start` does, within the loop. All methods but the constructor belong to the loop.
    `queue_timeout_s` bounds how long a request may wait without being started.
    """

    def __init__(
        self, engine: Engine, *, queue_timeout_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._queue_timeout_s = queue_timeout_s
        self._clock = clock
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="foreword-engine", daemon=True)
        self._by_request: dict[str, EngineStream[Any]] = {}  # the engine thread's
        self._deadlines: deque[tuple[float, str]] = deque()  # the engine thread's, in order of arrival
        self._open: dict[EngineStream[Any], None] = {}  # the loop's
        self._made: deque[tuple[dict[EngineStream[Any], list[Any]], list[EngineStream[Any]]]] = deque()
        self._is_delivery_due = False
        self._numbers = itertools.count()
        self._asked: set[asyncio.Future[Any]] = set()  # the loop's
        self._lost = False
        self._refusal: str | None = "the engine has not been started"
        self._stats = engine.stats()
        self._step_started: float | None = None
        self.step_failures = 0

    # -- on the event loop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusal = None
        self._thread.start()

    @property
    def stats(self) -> EngineStats:
        """The engine's counters as they stood after its last step or command."""
        return self._stats

    @property
    def is_alive(self) -> bool:
        """False when the engine's thread has ended, so that no request can be answered."""
        return self._thread.is_alive() and not self._lost

    @property
    def refusal(self) -> str | None:
        """Why no request is taken; None while requests are."""
        return self._refusal

    @property
    def num_open(self) -> int:
        """Streams that have not ended."""
        return len(self._open)

    def step_age_s(self) -> float:
        """Seconds since the step under way began; 0 between steps."""
        started = self._step_started
        return 0.0 if started is None else self._clock() - started

    def give_up(self, reason: str) -> None:
        """The step under way will not end: tell everybody who waits, and take nothing more. Never waits itself."""
        if not self._lost:
            self._lose_engine(reason, UnavailableError(reason))

    def new_request_id(self) -> str:
        """An id no other request of this engine has."""
        return f"r{next(self._numbers)}"

    def submit(
        self, requests: Sequence[EngineRequest], receive: Callable[[SequenceStep], ItemT]
    ) -> EngineStream[ItemT]:
        """Start requests; all or none of them.

        `receive` runs in the engine's thread between steps, for every record of one of the requests; it may call
        `Engine.finish`. What it returns goes to the stream. Refusals of `Engine.add` come out of the stream.

        Raises:
            UnavailableError: no requests are taken.
        """
        if self._refusal is not None:
            raise UnavailableError(self._refusal)
        stream: EngineStream[ItemT] = EngineStream(
            [request.request_id for request in requests],
            receive,
            num_sequences=sum(request.params.n for request in requests),
            abort=self._abort,
            on_end=self._forget,
        )
        self._open[stream] = None
        self._idle.clear()
        self._commands.put(lambda: self._add(stream, requests))
        return stream

    async def run(self, act: Callable[[Engine], ResultT]) -> ResultT:
        """Let the engine's thread call `act` between two steps; returns or raises what it does.

        Raises:
            UnavailableError: the thread has ended.
        """
        if not self.is_alive:
            raise UnavailableError(self._refusal or "the engine has been closed")
        future: asyncio.Future[ResultT] = self._loop.create_future()
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        self._commands.put(lambda: self._answer(future, act))
        return await future

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, end those not started, and let the others finish within `grace_s`."""
        self._refusal = self._refusal or "the server is shutting down"
        if self.is_alive:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.run(lambda _: self._end_waiting())
                    await self._idle.wait()
        self.end_streams()

    def end_streams(self) -> None:
        """End what waits and what runs; readers get all that came before, then are told."""
        for stream in list(self._open):
            stream.close(UnavailableError(self._refusal or "ended by the server"))

    async def close(self) -> None:
        """End everything and the thread, after the step under way."""
        await self.drain(0.0)
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
        self._lose_engine("the engine has been closed")

    def stop(self) -> None:
        """End the thread after the step under way, without a loop; ended already, it stays so.

        A process must not end while the thread is inside a kernel: the interpreter, when it is gone, ends the thread by
        unwinding its stack, which C++ answers with an abort.
        """
        if self._thread.is_alive():
            self._commands.put(None)
            self._thread.join()

    def _abort(self, request_ids: Sequence[str]) -> None:
        self._commands.put(lambda: self._drop(request_ids))

    def _forget(self, stream: EngineStream[Any]) -> None:
        self._open.pop(stream, None)
        if not self._open:
            self._idle.set()

    def _deliver(self) -> None:
        """Hand on all that steps have made since the last time, a stream's at once.

        Steps of a small model can be shorter than what the loop does for one: a call for each step would then keep it
        from everything else.
        """
        self._is_delivery_due = False  # before the look: what comes from here on asks for a delivery of its own
        made = [self._made.popleft() for _ in range(len(self._made))]
        items: dict[EngineStream[Any], list[Any]] = {}
        for of_step, _ in made:
            for stream, new in of_step.items():
                items.setdefault(stream, []).extend(new)
        for stream, new in items.items():
            stream.push(new)
        for _, ended in made:
            for stream in ended:
                stream.end(None)

    def _lose_engine(self, reason: str, error: Exception | None = None) -> None:
        """The thread has ended, or never will: nobody will ever answer what was asked."""
        self._lost = True
        self._refusal = self._refusal or reason
        for stream in list(self._open):
            stream.end(error or StepFailedError(reason))
        for future in list(self._asked):
            _set_exception(future, UnavailableError(reason))

    # -- in the engine's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_commands():
                if self._engine.has_unfinished:
                    self._step()
                self._stats = self._engine.stats()
            self._engine.abort_all()
        except Exception as error:
            self._end_by(error)

    def _end_by(self, error: Exception) -> None:
        """Tell everybody, before anything else, and when there is no memory to say it in, later."""
        while True:
            try:
                self._post(self._lose_engine, f"the engine has failed ({type(error).__name__}) and must be restarted")
                break
            except MemoryError:
                time.sleep(RETRY_S)
        logger.error("the engine's thread has ended", exc_info=error)

    def _take_commands(self) -> bool:
        """Run what was asked since the last step; sleep when there is nothing else to do. False at the end."""
        wait = not self._engine.has_unfinished
        while wait or not self._commands.empty():  # without an exception in each step
            command = self._commands.get()
            if command is None:
                return False
            command()
            wait = False
        return True

    def _add(self, stream: EngineStream[Any], requests: Sequence[EngineRequest]) -> None:
        try:
            for request in requests:
                self._engine.add(
                    request.request_id,
                    request.prompt_token_ids,
                    request.params,
                    request.eos_token_ids,
                    namespace=request.namespace,
                    tenant=request.tenant,
                    prefill_only=request.prefill_only,
                    probe=request.probe,
                    leases=request.leases,
                    constraint=request.constraint,
                )
                self._by_request[request.request_id] = stream
                self._deadlines.append((self._clock() + self._queue_timeout_s, request.request_id))
        except Exception as error:
            self._fail(stream, error)

    def _answer(self, future: "asyncio.Future[ResultT]", act: Callable[[Engine], ResultT]) -> None:
        try:
            result = act(self._engine)
        except Exception as error:
            self._post(_set_exception, future, error)
        else:
            self._post(_set_result, future, result)

    def _drop(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._engine.abort(request_id)
            self._by_request.pop(request_id, None)

    def _fail(self, stream: EngineStream[Any], error: Exception) -> None:
        self._drop(stream.request_ids)
        self._post(stream.end, error)

    def _end_waiting(self) -> None:
        for stream in dict.fromkeys(self._by_request.values()):
            if all(self._engine.is_waiting(r) for r in stream.live):
                self._fail(stream, UnavailableError("the server is shutting down"))

    def _step(self) -> None:
        self._expire()
        self._step_started = self._clock()
        try:
            result = self._engine.step()
        except Exception as error:
            self._step_failed(error)
        else:
            self._distribute(result)
        finally:
            self._step_started = None

    def _step_failed(self, error: Exception) -> None:
        """End the requests of the step that raised; without a name for them, all."""
        logger.error("a step failed", exc_info=error)
        self.step_failures += 1
        failed = self._engine.failed_requests
        if not failed or isinstance(error, InvariantError):
            self._engine.abort_all()
            self._engine.check_invariants()
            failed = tuple(self._by_request)  # type: ignore[arg-type]  # ids as the engine knows them
        told: Exception = StepFailedError(f"the step failed: {type(error).__name__}")
        if isinstance(error, MemoryError):
            told = UnavailableError("the machine has no memory left for this request")
        for stream in dict.fromkeys(self._by_request[r] for r in failed if r in self._by_request):
            self._fail(stream, told)

    def _distribute(self, result: StepResult) -> None:
        items: dict[EngineStream[Any], list[Any]] = {}
        touched: dict[str, EngineStream[Any]] = {}
        for step in result.sequences:
            stream = self._by_request.get(step.request_id)
            if stream is None:
                continue
            try:
                item = stream.receive(step)
            except Exception as error:
                logger.exception("a request's text could not be made")
                items.pop(stream, None)
                self._fail(stream, error)
                continue
            items.setdefault(stream, []).append(item)
            touched[step.request_id] = stream
        ended = [stream for request_id, stream in touched.items() if self._has_ended(request_id, stream)]
        for stream, failure in take_shortcuts(items, ended):
            self._fail(stream, failure)
        if items:
            begins = len(items) <= MAX_SHORTCUTS and any(stream.is_new for stream in items)
            for stream, new in items.items():
                stream.post(new)
            self._made.append((items, ended))
            if not self._is_delivery_due:
                self._is_delivery_due = True
                self._post(self._deliver)
            if begins:
                self._hand_over()
        for refused in result.failures:
            refused_stream = self._by_request.get(refused.request_id)
            if refused_stream is not None:
                self._fail(refused_stream, refused.error)

    def _hand_over(self) -> None:
        """Let the loop take and write what was posted before the next step wants every core, and this thread Python."""
        written = threading.Event()
        self._post(self._loop.call_soon, written.set)  # behind the tasks that the delivery wakes
        written.wait(HAND_OVER_S)

    def _has_ended(self, request_id: str, stream: EngineStream[Any]) -> bool:
        """Note the end of a request; True when it was its stream's last."""
        if self._engine.is_live(request_id) or request_id not in self._by_request:
            return False
        del self._by_request[request_id]
        stream.live.discard(request_id)
        return not stream.live

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            _, request_id = self._deadlines.popleft()
            stream = self._by_request.get(request_id)
            if stream is not None and self._engine.is_waiting(request_id):
                self._fail(stream, QueueTimeoutError(f"not started within {self._queue_timeout_s:g} s"))

    def _post(self, call: Callable[..., object], *args: object) -> None:
        """Tell the loop: where there is no memory for it now, later, as somebody would wait for ever."""
        while True:
            try:
                with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                    self._loop.call_soon_threadsafe(call, *args)
                return
            except MemoryError:
                time.sleep(RETRY_S)


def _set_result(future: "asyncio.Future[ResultT]", result: ResultT) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[ResultT]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
