"""Watches the engine's thread: a step that does not end is told, and not waited for.

A kernel that hangs can't be stopped from outside, so the process can't be saved: all requests end with an error, no
more are taken, `/health` fails, and where it was asked for the process ends, for whoever supervises it to start anew.

A process that was halted for a while (by a signal, a paused container, a machine's sleep) is not stuck: the watchdog
did not run then either, and that time is not counted.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

from foreword.engine.async_engine import AsyncEngine
from foreword.server.limits import Limits
from foreword.server.logs import log

EXIT_CODE = 70
"""Of a process that ended itself because its engine hung: EX_SOFTWARE."""
THREAD_NAME = "foreword-engine"


class Watchdog:
    """Looks several times in the time a step may take. Event loop only."""

    def __init__(
        self,
        engine: AsyncEngine,
        limits: Limits,
        leave: Callable[[int], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch an engine; `leave` ends the process with a code."""
        self._engine = engine
        self._limits = limits
        self._leave = leave
        self._clock = clock
        self._interval_s = limits.stuck_step_s / 10
        self._looked_at = clock()
        self._halted_s = 0.0  # of the age of the step under way
        self._is_watching = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._looked_at = self._clock()
        self._is_watching = True
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Watch no more."""
        self._is_watching = False
        if self._task is not None:
            self._task.cancel()

    def is_stuck(self) -> bool:
        """True while a step takes longer than one may; while this watches, in time in which the process ran."""
        if not self._is_watching:
            return self._engine.step_age_s() >= self._limits.stuck_step_s
        now, age_s = self._clock(), self._engine.step_age_s()
        since_s, self._looked_at = now - self._looked_at, now
        late_s = max(0.0, since_s - 2 * self._interval_s)
        before_s = self._halted_s if age_s > since_s else 0.0  # the step before had its own
        self._halted_s = before_s + min(late_s, age_s)
        return age_s - self._halted_s >= self._limits.stuck_step_s

    async def _watch(self) -> None:
        limit_s = self._limits.stuck_step_s
        while not self.is_stuck():
            await asyncio.sleep(self._interval_s)
        self._is_watching = False
        log("the engine is stuck", logging.CRITICAL, step_age_s=self._engine.step_age_s(), where=stack())
        self._engine.give_up(f"a step has not ended within {limit_s:g} s; the server must be restarted")
        if self._limits.exits_when_stuck:
            await asyncio.sleep(min(1.0, limit_s))  # let the answers reach their clients
            self._leave(EXIT_CODE)


def stack() -> list[str]:
    """Where the engine's thread is, without a word of any prompt."""
    engines = {thread.ident for thread in threading.enumerate() if thread.name == THREAD_NAME}
    for ident, frame in sys._current_frames().items():
        if ident in engines:
            return [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_stack(frame)[-12:]]
    return []
