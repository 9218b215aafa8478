"""A tenant that asks so many times a second, whatever becomes of it, in a process of its own: what it takes to ask is
not in the times of whoever is measured beside it.

    python -m tests.server.flood PORT KEY RATE SECONDS    prints how many answers had which status
"""

import asyncio
import json
import sys
import time
from collections import Counter

from tests.server.crowd import Caller
from tests.server.wire import completion_body

CUT = 0
ANSWER = 8


async def ask(port: int, key: str, text: str, answer: int = ANSWER) -> Caller:
    """A streamed completion of so many tokens."""
    body = completion_body(text, stream=True, max_tokens=answer, ignore_eos=True)
    return await Caller.ask(port, "/v1/completions", body, key=key)


async def flood(port: int, key: str, rate: float, seconds: float) -> Counter[int]:
    """Statuses; of the answer that was cut off before its status was read, `CUT`."""
    statuses: Counter[int] = Counter()

    async def one(number: int) -> None:
        try:
            caller = await ask(port, key, f"bob asks {number}")
            await caller.head()
            await caller.rest()
        except (ConnectionError, asyncio.IncompleteReadError):
            statuses[CUT] += 1  # of more connections than a server takes, before its 503 was read
        else:
            statuses[caller.status] += 1

    async with asyncio.TaskGroup() as group:
        began = time.monotonic()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(one(number))
    return statuses


if __name__ == "__main__":
    print(json.dumps(asyncio.run(flood(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))))
