"""Watches the engine's thread: a step that does not end is told, and not waited for.

A kernel that hangs can't be stopped from outside, so the process can't be saved: all requests end with an error, no
more are taken, `/health` fails, and where it was asked for the process ends, for whoever supervises it to start anew.
"""

import asyncio
import logging
import sys
import threading
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

    def __init__(self, engine: AsyncEngine, limits: Limits, leave: Callable[[int], object]) -> None:
        """Watch an engine; `leave` ends the process with a code."""
        self._engine = engine
        self._limits = limits
        self._leave = leave
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        limit_s = self._limits.stuck_step_s
        while self._engine.step_age_s() < limit_s:
            await asyncio.sleep(limit_s / 10)
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
