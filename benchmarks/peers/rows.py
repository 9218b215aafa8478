"""The rows: what each asks of an engine that has just started, and which number of it counts."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.peers.engine import Answer, Engine, ask_all
from benchmarks.peers.workloads import Workloads

Values = dict[str, float]
Measure = Callable[[Engine], Values]

_DECODE_PROMPT, _DECODE_TOKENS = 64, 256
_LONG_TOKENS = 64  # decoded after the longest prompt, and after a short one beside it
_LENGTHS = _SHORT, _MIDDLE, _LONG = 512, 2048, 6000
_SHORT_TIMES = 3  # a short prompt is over so soon that one time says little
_LOGPROBS = 5
_GROWTH_PREFILL, _GROWTH_DECODE = "growth: prefill 6000 / 512", "growth: decode at 6000 / 64"
_ONE_SLOT = ("-np", "1", "-c", "8192")
_EIGHT_SLOTS = ("-np", "8", "-c", "16384", "--no-kv-unified", "-cram", "0")
_SIXTEEN_SLOTS = ("-np", "16", "-c", "32768", "--no-kv-unified", "-cram", "0")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its values, and what they are held to.

    `targets` are the ratios a value is held to, by peer; `limits` what the value itself is held to. `seconds` say how
    long a round takes each engine on two quiet cores, its start included; an engine that is not there does not run the
    row, and `left_out` says why. `share` names a value and the rate that it is made of, times the bytes of a token over
    the bandwidth measured beside it. `llama_flags` are the fastest known for the row.
    """

    name: str
    what: str
    larger_is_better: Mapping[str, bool]
    targets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    llama_flags: tuple[str, ...] = _ONE_SLOT
    share: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRow(Row):
    """A row of requests: `prepare` draws its prompts, once a round for all engines, and gives the measurement."""

    prepare: Callable[[Workloads], Measure]


def _decode(workloads: Workloads) -> Measure:
    (prompt,) = workloads.alone(_DECODE_PROMPT)
    return lambda engine: {"decode tok/s": engine.ask(prompt, _DECODE_TOKENS).decode_tok_s}


def _prefill(workloads: Workloads) -> Measure:
    shorts, (middle,), (long,) = workloads.alone(_SHORT, _SHORT_TIMES), workloads.alone(_MIDDLE), workloads.alone(_LONG)
    (plain,) = workloads.alone(_DECODE_PROMPT)

    def measure(engine: Engine) -> Values:
        short = _SHORT / statistics.median(engine.ask(prompt, 1).ttft_s for prompt in shorts)
        half = _MIDDLE / engine.ask(middle, 1).ttft_s
        answer = engine.ask(long, _LONG_TOKENS)
        whole, near = _LONG / answer.ttft_s, engine.ask(plain, _LONG_TOKENS).decode_tok_s
        rates = {f"prefill {length} tok/s": rate for length, rate in zip(_LENGTHS, (short, half, whole), strict=True)}
        return rates | {_GROWTH_PREFILL: whole / short, _GROWTH_DECODE: answer.decode_tok_s / near}

    return measure


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
        batched = ask_all(engine, [*others[:3], target, *others[3:]], 16, at_once=8, logprobs=_LOGPROBS)[3]
        pairs = {"repeat": again, "prefix hit": hit, "in a batch": batched}
        return {f"logprob difference, {name}": largest_difference(cold, other) for name, other in pairs.items()}

    return measure


def _shared(workloads: Workloads) -> Measure:
    prompts, apart = workloads.over_one_prefix(4096, 16, 16), workloads.alone(4112, 16)

    def measure(engine: Engine) -> Values:
        engine.ask(prompts[0], 1)  # the prefix is computed once, before the clock runs
        shared = together_tok_s(ask_all(engine, prompts, 64, at_once=16))
        for prompt in apart:  # computed before the clock runs as well: its last block alone is left to compute then
            engine.ask(prompt, 1)
        unshared = together_tok_s(ask_all(engine, apart, 64, at_once=16))
        return {"decode tok/s": shared, "unshared decode tok/s": unshared, "shared / unshared": shared / unshared}

    return measure


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
_EXACT = {f"logprob difference, {name}": 0.0 for name in ("repeat", "prefix hit", "in a batch")}


def _seconds(foreword: float, llama_cpp: float, openvino: float, transformers: float) -> dict[str, float]:
    found = {"foreword": foreword, "llama.cpp": llama_cpp, "openvino": openvino, "transformers": transformers}
    return {name: seconds for name, seconds in found.items() if seconds}


ROWS: Mapping[str, AskedRow] = {
    row.name: row
    for row in (
        AskedRow(
            "W1",
            "decode, 64 + 256 tokens, one stream",
            {"decode tok/s": True, "of bandwidth": True},
            {"decode tok/s": {"llama.cpp": 1.6}},
            {"of bandwidth": 0.75},
            _seconds(3, 5, 14, 40),
            share=("of bandwidth", "decode tok/s"),
            prepare=_decode,
        ),
        AskedRow(
            "W2",
            "cold prefill, and what length costs",
            {f"prefill {length} tok/s": True for length in _LENGTHS} | {_GROWTH_PREFILL: True, _GROWTH_DECODE: True},
            {f"prefill {length} tok/s": _BOTH_WAYS for length in _LENGTHS},
            {_GROWTH_PREFILL: 0.45, _GROWTH_DECODE: 0.6},
            _seconds(23, 90, 52, 66),
            prepare=_prefill,
        ),
        AskedRow(
            "W3",
            "2,000 cached + 32",
            {"cold TTFT s": False, "warm TTFT s": False},
            {"warm TTFT s": _THRICE},
            seconds=_seconds(4, 17, 13, 20),
            prepare=_warm,
        ),
        AskedRow(
            "W4",
            "burst: 32 requests of 1,024 shared + 64, 16 out, 8 at a time",
            {"wall s": False},
            {"wall s": {"llama.cpp": 8.0, "openvino": 3.0, "vllm": 3.0}},
            seconds=_seconds(7, 48, 41, 150),
            llama_flags=_EIGHT_SLOTS,
            prepare=_burst,
        ),
        AskedRow(
            "W5",
            "eight prefixes of 1,000 in turn",
            {"cold TTFT s": False, "warm TTFT s": False, "peak memory MiB": False},
            {"warm TTFT s": _THRICE},
            {"peak memory MiB": 400 / 1.048576},
            _seconds(13, 48, 36, 130),
            llama_flags=_EIGHT_SLOTS,
            prepare=_prefixes,
        ),
        AskedRow(
            "W6",
            "16 streams, 64 + 128",
            {"tok/s": True},
            {"tok/s": {"llama.cpp": 3.0}},
            seconds=_seconds(6, 20, 21, 50),
            llama_flags=_SIXTEEN_SLOTS,
            prepare=_streams,
        ),
        AskedRow(
            "W7",
            "process start to first answered request",
            {"start s": False},
            {},
            {"start s": 0.6},
            _seconds(1, 1, 6, 5),
            prepare=_start,
        ),
        AskedRow(
            "W8",
            "largest difference of logprobs",
            dict.fromkeys(_EXACT, False),
            {},
            _EXACT,
            _seconds(3, 20, 14, 20),
            llama_flags=("-np", "16", "-kvu", "-c", "32768"),
            prepare=_exactness,
        ),
        AskedRow(
            "shared",
            "16 streams over one prefix of 4,096, beside 16 prefixes",
            {"decode tok/s": True, "unshared decode tok/s": True, "shared / unshared": True},
            {},
            {"shared / unshared": 2.0},
            _seconds(130, 0, 270, 600),
            {"llama.cpp": "16 contexts of 4,112 tokens computed one by one take it ten minutes"},
            prepare=_shared,
        ),
    )
}
