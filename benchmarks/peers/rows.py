"""The rows: what each asks of an engine that has just started, and which number of it counts."""

import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.peers.engine import Answer, Engine, ask_all
from benchmarks.peers.workloads import Workloads

Values = dict[str, float]
Measure = Callable[[Engine], Values]

_DECODE_PROMPT, _DECODE_TOKENS = 64, 256
_LONG_PROMPT, _LONG_TOKENS = 6000, 64
_PREFILL_LENGTHS = (512, 2048, 6000)
_LOGPROBS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One row: `prepare` draws its prompts, once a round for all engines, and gives the measurement.

    `targets` are the ratios issue and table hold a value to, by peer; `limits` what the value itself is held to.
    """

    name: str
    what: str
    prepare: Callable[[Workloads], Measure]
    larger_is_better: Mapping[str, bool]
    targets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


def _decode(workloads: Workloads) -> Measure:
    (prompt,) = workloads.alone(_DECODE_PROMPT)
    return lambda engine: {"decode tok/s": engine.ask(prompt, _DECODE_TOKENS).decode_tok_s}


def _prefill(workloads: Workloads) -> Measure:
    prompts = {length: workloads.alone(length)[0] for length in _PREFILL_LENGTHS}
    return lambda engine: {
        f"prefill {length} tok/s": length / engine.ask(prompt, 1).ttft_s for length, prompt in prompts.items()
    }


def _warm(workloads: Workloads) -> Measure:
    first, second = workloads.over_one_prefix(2000, 32, 2)

    def measure(engine: Engine) -> Values:
        cold, warm = engine.ask(first, 1), engine.ask(second, 1)
        return {"cold TTFT s": cold.ttft_s, "warm TTFT s": warm.ttft_s}

    return measure


def _burst(workloads: Workloads) -> Measure:
    prompts = workloads.over_one_prefix(1024, 64, 32)

    def measure(engine: Engine) -> Values:
        answers = ask_all(engine, prompts, 16, at_once=8)
        ends = [answer.sent_at_s + answer.total_s for answer in answers]
        return {"wall s": max(ends) - min(answer.sent_at_s for answer in answers)}

    return measure


def _prefixes(workloads: Workloads) -> Measure:
    rounds = workloads.rounds_over_prefixes(1000, 32, 8, 3)

    def measure(engine: Engine) -> Values:
        times = [[engine.ask(prompt, 8).ttft_s for prompt in prompts] for prompts in rounds]
        warm = [time for one_round in times[1:] for time in one_round]
        found = {"cold TTFT s": statistics.mean(times[0]), "warm TTFT s": statistics.median(warm)}
        memory = engine.memory_mib()
        return found if memory is None else found | {"peak memory MiB": memory}

    return measure


def _streams(workloads: Workloads) -> Measure:
    prompts = workloads.alone(64, 16)

    def measure(engine: Engine) -> Values:
        answers = ask_all(engine, prompts, 128, at_once=16)
        ends = [answer.sent_at_s + answer.total_s for answer in answers]
        return {"tok/s": 16 * 128 / (max(ends) - min(answer.sent_at_s for answer in answers))}

    return measure


def _start(_: Workloads) -> Measure:
    return lambda engine: {"start s": engine.start_s}


def _exactness(workloads: Workloads) -> Measure:
    target, sibling = workloads.over_one_prefix(256, 44, 2)
    others = workloads.alone(300, 7)

    def measure(engine: Engine) -> Values:
        cold = engine.ask(target, 16, _LOGPROBS)
        again = engine.ask(target, 16, _LOGPROBS)
        engine.ask(sibling, 4)
        hit = engine.ask(target, 16, _LOGPROBS)
        batched = _ask_among(engine, target, others)
        pairs = {"repeat": again, "prefix hit": hit, "in a batch": batched}
        return {f"logprob difference, {name}": largest_difference(cold, other) for name, other in pairs.items()}

    return measure


def _growth(workloads: Workloads) -> Measure:
    short, long = workloads.alone(512)[0], workloads.alone(_LONG_PROMPT)[0]
    (plain,) = workloads.alone(_DECODE_PROMPT)

    def measure(engine: Engine) -> Values:
        brief = engine.ask(short, 1)
        prompted = engine.ask(long, _LONG_TOKENS)
        decoded = engine.ask(plain, _LONG_TOKENS)
        return {
            "prefill 6000 / 512": (_LONG_PROMPT / prompted.ttft_s) / (512 / brief.ttft_s),
            "decode at 6000 / 64": prompted.decode_tok_s / decoded.decode_tok_s,
        }

    return measure


def _shared(workloads: Workloads) -> Measure:
    prompts = workloads.over_one_prefix(4096, 16, 16)

    def measure(engine: Engine) -> Values:
        engine.ask(prompts[0], 1)  # the prefix is computed once, before the clock runs
        return {"decode tok/s": together_tok_s(ask_all(engine, prompts, 64, at_once=16))}

    return measure


def _ask_among(engine: Engine, target: list[int], others: list[list[int]]) -> Answer:
    """The target's answer while the others are computed in the same steps."""
    found: list[Answer] = []
    threads = [threading.Thread(target=engine.ask, args=(prompt, 16)) for prompt in others[:3]]
    threads.append(threading.Thread(target=lambda: found.append(engine.ask(target, 16, _LOGPROBS))))
    threads += [threading.Thread(target=engine.ask, args=(prompt, 16)) for prompt in others[3:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0]


def largest_difference(one: Answer, other: Answer) -> float:
    """Largest difference of the logprobs both name, over all positions until their texts part; infinite if none."""
    largest = -1.0
    for mine, theirs in zip(one.logprobs, other.logprobs, strict=False):
        for token in mine.keys() & theirs.keys():
            largest = max(largest, abs(mine[token] - theirs[token]))
        if max(mine, key=mine.__getitem__) != max(theirs, key=theirs.__getitem__):
            break
    return largest if largest >= 0 else float("inf")


def together_tok_s(answers: list[Answer]) -> float:
    """Tokens a second of all streams, while every one of them was under way."""
    begin = max(answer.sent_at_s + answer.times_s[0] for answer in answers)
    end = min(answer.sent_at_s + answer.times_s[-1] for answer in answers)
    if end <= begin:  # streams one after another: over the whole time
        begin = min(answer.sent_at_s + answer.times_s[0] for answer in answers)
        end = max(answer.sent_at_s + answer.times_s[-1] for answer in answers)
    arrived = [answer.sent_at_s + time for answer in answers for time in answer.times_s]
    return sum(begin < time <= end for time in arrived) / (end - begin)


_BOTH_WAYS = {"llama.cpp": 4.0, "openvino": 2.0, "vllm": 2.0}
_THRICE = {"openvino": 3.0, "llama.cpp": 3.0, "vllm": 3.0}

ROWS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row(
            "W1",
            "decode, 64 + 256 tokens, one stream",
            _decode,
            {"decode tok/s": True},
            {"decode tok/s": {"llama.cpp": 1.6}},
        ),
        Row(
            "W2",
            "cold prefill",
            _prefill,
            {f"prefill {n} tok/s": True for n in _PREFILL_LENGTHS},
            {f"prefill {n} tok/s": _BOTH_WAYS for n in _PREFILL_LENGTHS},
        ),
        Row("W3", "2,000 cached + 32", _warm, {"cold TTFT s": False, "warm TTFT s": False}, {"warm TTFT s": _THRICE}),
        Row(
            "W4",
            "burst: 32 requests of 1,024 shared + 64, 16 out, 8 at a time",
            _burst,
            {"wall s": False},
            {"wall s": {"llama.cpp": 8.0, "openvino": 3.0, "vllm": 3.0}},
        ),
        Row(
            "W5",
            "eight prefixes of 1,000 in turn",
            _prefixes,
            {"cold TTFT s": False, "warm TTFT s": False, "peak memory MiB": False},
            {"warm TTFT s": _THRICE},
            {"peak memory MiB": 400 / 1.048576},
        ),
        Row("W6", "16 streams, 64 + 128", _streams, {"tok/s": True}, {"tok/s": {"llama.cpp": 3.0}}),
        Row("W7", "process start to first answered request", _start, {"start s": False}, {}, {"start s": 0.6}),
        Row(
            "W8",
            "largest difference of logprobs",
            _exactness,
            {f"logprob difference, {name}": False for name in ("repeat", "prefix hit", "in a batch")},
            {},
            {f"logprob difference, {name}": 0.0 for name in ("repeat", "prefix hit", "in a batch")},
        ),
        Row(
            "growth",
            "what length costs",
            _growth,
            {"prefill 6000 / 512": True, "decode at 6000 / 64": True},
            {},
            {"prefill 6000 / 512": 0.45, "decode at 6000 / 64": 0.6},
        ),
        Row("shared", "16 streams over one prefix of 4,096", _shared, {"decode tok/s": True}),
    )
}
