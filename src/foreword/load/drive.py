"""When calls are sent.

closed   so many streams; each sends its next request when the answer to the one before is complete
open     a session starts when it is due, whatever has become of the others: requests pile up where the server is slow
"""

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from msgspec import Struct

from foreword.core.errors import InvalidRequestError
from foreword.load.call import Call, Record, Session

MAX_OPEN = 4096
"""Sessions under way of an open loop; those beyond are counted as `client_limit` and not sent."""


class Sender(Protocol):
    """What sends: `client.Client`, or anything with a clock of its own."""

    def clock(self) -> float:
        """Seconds."""

    async def send(self, call: Call, due_s: float | None = None) -> Record:
        """Send a call, and say what became of it."""


class Pace(Struct, frozen=True, kw_only=True):
    """`streams` sessions at once; or with `streams` None each session at its `start_s`.

    No session starts after `duration_s`; those under way are finished.
    """

    streams: int | None
    duration_s: float = math.inf

    def __post_init__(self) -> None:
        if self.streams is not None and not 1 <= self.streams <= MAX_OPEN:
            raise InvalidRequestError("streams", f"1 to {MAX_OPEN}", self.streams)
        if not self.duration_s > 0:
            raise InvalidRequestError("duration", "more than 0 seconds", self.duration_s)


def poisson(sessions: Iterable[Session], rate: float, seed: int) -> Iterator[Session]:
    """The same sessions, due at random: `rate` a second on average, however long others take.

    Raises:
        InvalidRequestError: a rate that is none.
    """
    if not 0 < rate < math.inf:
        raise InvalidRequestError("rate", "more than 0 requests a second", rate)
    rng = random.Random(seed)
    due_s = 0.0
    for session in sessions:
        due_s += rng.expovariate(rate)
        yield Session(session.calls, due_s, session.offsets_s)


async def drive(
    client: Sender, sessions: Iterable[Session], pace: Pace, tell: Callable[[int], None] = lambda done: None
) -> list[Record]:
    """Run sessions to the end of `sessions` or of the time; records of all calls, in the order they ended."""
    records: list[Record] = []
    source = iter(sessions)
    begun_s = client.clock()

    def note(record: Record) -> None:
        records.append(record)
        tell(len(records))

    async def run(session: Session, start_s: float) -> None:
        for index, call in enumerate(session.calls):
            due_s = max(client.clock(), start_s + session.due_s(index)) if index else start_s
            await _sleep_until(client, due_s)
            note(await client.send(call, due_s))

    async def stream() -> None:
        for session in source:
            now = client.clock()
            if now - begun_s >= pace.duration_s:
                return
            await run(session, now)

    if pace.streams is not None:
        await asyncio.gather(*(stream() for _ in range(pace.streams)))
        return records
    open_sessions: set[asyncio.Task[None]] = set()
    for session in source:
        if session.start_s >= pace.duration_s:
            break
        due_s = begun_s + session.start_s
        await _sleep_until(client, due_s)
        if len(open_sessions) >= MAX_OPEN:
            note(Record(due_s=due_s, end_s=due_s, outcome="client_limit"))
            continue
        task = asyncio.create_task(run(session, due_s))
        open_sessions.add(task)
        task.add_done_callback(open_sessions.discard)
    await asyncio.gather(*open_sessions)
    return records


async def _sleep_until(client: Sender, due_s: float) -> None:
    left = due_s - client.clock()
    if left > 0:
        await asyncio.sleep(left)
