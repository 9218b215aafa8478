"""The rows of `foreword bench` that go through a server: a load on it, and what the web side adds to the engine alone.

The load's question is what clients see; its bound is the engine's own rate at so many sequences (`foreword bench
batch`). The web side's is a difference: the same prompts by turns to `LLM` in this process and over loopback to a
server in another one, with the same options. Each pair is measured within a second or two, so what else the machine
does falls on both.
"""

import asyncio
import math
import statistics
from collections.abc import Callable, Iterable

from foreword.bench.bench import Bench, first_token_s, timed, with_spread
from foreword.bench.result import Metrics
from foreword.core.errors import ForewordError
from foreword.load.blocking import open_blocking
from foreword.load.call import Record, Session, completion_call
from foreword.load.client import Client
from foreword.load.drive import Pace, drive
from foreword.load.report import Objectives, report
from foreword.load.wire import Endpoint

PAIRS_A_REPEAT = 5
WARM_UP_PAIRS = 2
PROMPT_TOKENS, ANSWER_TOKENS = 32, 32


def model_of(endpoint: Endpoint) -> str:
    """The first model a server lists.

    Raises:
        ForewordError: nobody answers.
    """
    return asyncio.run(Client(endpoint).first_model())


def load(
    endpoint: Endpoint,
    sessions: Iterable[Session],
    pace: Pace,
    objectives: Objectives,
    *,
    timeout_s: float = 120.0,
    tell: Callable[[int], None] = lambda done: None,
) -> Metrics:
    """Send sessions to a server, and report."""

    async def run() -> list[Record]:
        client = Client(endpoint, timeout_s=timeout_s)
        try:
            return await drive(client, sessions, pace, tell)
        finally:
            client.close()

    asked_s = None if pace.duration_s == math.inf else pace.duration_s
    return report(asyncio.run(run()), objectives, asked_s)


def web_cost(bench: Bench, url: str) -> Metrics:
    """What the web side adds to `LLM` alone; `url` is a server of the same model with the same options.

    Raises:
        ForewordError: an answer failed, or has not as many tokens as were asked for.
    """
    client = Client(Endpoint.of(url), connect=open_blocking)
    added_s, ratios, alone, served = [], [], [], []
    with asyncio.Runner() as runner:
        model = runner.run(client.first_model())
        for pair in range(-WARM_UP_PAIRS, PAIRS_A_REPEAT * bench.repeats):
            bench.tell(f"web · {max(pair, 0) + 1} of {PAIRS_A_REPEAT * bench.repeats}")
            prompt = bench.prompt(PROMPT_TOKENS)
            if pair % 2:  # who goes first changes
                here = _alone(bench, prompt)
                there = _served(runner, client, model, prompt)
            else:
                there = _served(runner, client, model, prompt)
                here = _alone(bench, prompt)
            if pair >= 0:
                alone.append(here)
                served.append(there)
                added_s.append(there[0] - here[0])
                ratios.append(there[1] / here[1] - 1)
        client.close()
    return {
        "pairs": len(alone),
        "alone_ttft_s": statistics.median(ttft_s for ttft_s, _ in alone),
        "served_ttft_s": statistics.median(ttft_s for ttft_s, _ in served),
        **with_spread("added_ttft_s", added_s),
        "alone_itl_s": statistics.median(itl_s for _, itl_s in alone),
        "served_itl_s": statistics.median(itl_s for _, itl_s in served),
        **with_spread("added_itl_ratio", ratios),
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": ANSWER_TOKENS,
    }


def _alone(bench: Bench, prompt: list[int]) -> tuple[float, float]:
    clock = timed(bench.llm, prompt, ANSWER_TOKENS)
    ttft_s = first_token_s(clock)
    return ttft_s, (clock.wall_s - ttft_s) / (ANSWER_TOKENS - 1)


def _served(runner: asyncio.Runner, client: Client, model: str, prompt: list[int]) -> tuple[float, float]:
    record = runner.run(client.send(completion_call(model, prompt, ANSWER_TOKENS)))
    if record.ttft_s is None or record.tpot_s is None or record.completion_tokens != ANSWER_TOKENS:
        raise ForewordError(f"web: an answer failed ({record.outcome}), or is shorter than was asked for")
    return record.ttft_s, record.tpot_s
