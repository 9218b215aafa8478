"""Time tells a tenant nothing of what another has stored (S-C3): the engine does the same, and the clock agrees."""

import asyncio
import random
import time
from itertools import chain

import numpy as np
import pytest

from foreword.engine.metrics import EngineStats
from tests.profile import DEEP
from tests.server.conftest import Keyed
from tests.server.crowd import Caller
from tests.server.wire import completion_body, send

NUM_PROBES, PROMPT = (200, 400) if DEEP else (10, 200)


def secret(number: int) -> str:
    """Words that differ from all others from their first letter on."""
    return f"{number:03d}" + "s" * (PROMPT - 3)


def work(keyed: Keyed) -> EngineStats:
    return keyed.live.run(keyed.live.service.engine.run(lambda engine: engine.stats()))


def prime(keyed: Keyed, who: str, number: int) -> None:
    body = completion_body(secret(number), max_tokens=1)
    assert send(keyed.live.port, "POST", "/v1/completions", body, key=keyed.keys[who]).status == 200


def reset(keyed: Keyed) -> None:
    keyed.live.run(keyed.live.service.engine.run(lambda engine: engine.reset_cache()))


@pytest.fixture(autouse=True)
def _empty_cache(keyed: Keyed) -> None:
    reset(keyed)


def test_a_guess_costs_the_same_work_whether_another_has_said_it_or_not(keyed: Keyed) -> None:
    def cost(who: str, number: int, primed: int) -> tuple[int, ...]:
        reset(keyed)
        prime(keyed, "alice", primed)
        before = work(keyed)
        prime(keyed, who, number)
        after = work(keyed)
        names = ("num_steps", "computed_tokens", "hit_tokens", "copied_blocks", "deduplicated_blocks", "cached_blocks")
        return tuple(getattr(after, name) - getattr(before, name) for name in names)

    for number in range(NUM_PROBES):
        other = 500 + number
        assert cost("bob", number, primed=number) == cost("bob", number, primed=other)
        assert cost("alice", number, primed=number) < cost("alice", number, primed=other)  # one's own is cheaper


def area(fast: list[float], slow: list[float]) -> float:
    """How often a value of the first is below one of the second: Mann and Whitney's U as a share; 0.5 says nothing."""
    a, b = np.array(fast)[:, None], np.array(slow)[None, :]
    return float(np.mean((a < b) + 0.5 * (a == b)))


def deviation(count: int) -> float:
    """Of `area` for two samples of this size from one distribution."""
    return float(((2 * count + 1) / (12 * count * count)) ** 0.5)


async def first_token_s(keyed: Keyed, who: str, number: int) -> float:
    body = completion_body(secret(number), max_tokens=1, stream=True)
    began = time.perf_counter()
    caller = await Caller.ask(keyed.live.port, "/v1/completions", body, key=keyed.keys[who])
    await caller.head()
    taken = time.perf_counter() - began
    await caller.rest()
    return taken


async def probe(keyed: Keyed, who: str) -> float:
    """`area` of primed below unprimed prompts, in random order, each asked after once."""
    rng = random.Random(3)
    order = list(chain(*((2 * n, 2 * n + 1) for n in range(NUM_PROBES))))
    rng.shuffle(order)
    primed: list[float] = []
    unprimed: list[float] = []
    for number in order:
        await asyncio.to_thread(reset, keyed)
        await asyncio.to_thread(prime, keyed, "alice", number if number % 2 == 0 else 500 + number)
        (unprimed if number % 2 else primed).append(await first_token_s(keyed, who, number))
    return area(primed, unprimed)


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="a minute, and looks at the clock")
def test_first_tokens_of_guesses_come_as_fast_whether_another_has_said_them_or_not(keyed: Keyed) -> None:
    own, others = asyncio.run(probe(keyed, "alice")), asyncio.run(probe(keyed, "bob"))

    print(f"primed below unprimed: {others:.3f} of pairs by another's words, {own:.3f} by one's own")
    assert own > 0.7  # the clock would show it
    assert abs(others - 0.5) < 3.3 * deviation(NUM_PROBES)  # p > 0.001
