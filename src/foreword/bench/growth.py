"""How decoding slows down as the context grows, with K and V as floats of 16 bits and as integers.

A step reads the weights, and K and V of every position before it: the first is the same for any context, the second
grows with it. All engines hold the same prompts, each read once before anything is timed, and answer in turns.
"""

import statistics
from collections.abc import Sequence

from foreword.bench.bench import Bench, timed, with_spread
from foreword.bench.result import Metrics
from foreword.core.config import KVDtype
from foreword.core.errors import InvalidRequestError, InvariantError
from foreword.llm import LLM

SHORT_CONTEXT, GROWTH_TOKENS = 64, 64
KV_DTYPES: tuple[KVDtype, ...] = ("f16", "int16", "int8")


def growth(bench: Bench, contexts: Sequence[int], *, num_tokens: int = GROWTH_TOKENS) -> Metrics:
    """One stream, `num_tokens` tokens behind 64 prompt tokens and behind each of `contexts`.

    Raises:
        InvalidRequestError: a context is not longer than 64 tokens.
    """
    if not contexts or min(contexts) <= SHORT_CONTEXT:
        raise InvalidRequestError("lengths", f"numbers of tokens above {SHORT_CONTEXT}", list(contexts))
    engines = {kv_dtype: bench.open(kv_dtype=kv_dtype) for kv_dtype in KV_DTYPES}
    prompts = {length: bench.prompt(length) for length in (SHORT_CONTEXT, *sorted(set(contexts)))}
    for kv_dtype, llm in engines.items():
        for length, prompt in prompts.items():
            bench.tell(f"growth · reads {length:,} tokens, {kv_dtype}")
            timed(llm, prompt, 1)
    rates: dict[str, list[float]] = {f"{kv_dtype}_{length}": [] for kv_dtype in engines for length in prompts}
    for _ in bench.rounds("growth"):
        for length, prompt in prompts.items():
            for kv_dtype, llm in engines.items():
                rates[f"{kv_dtype}_{length}"].append(_rate(llm, prompt, num_tokens))
    metrics: dict[str, object] = {}
    for name, found in rates.items():
        metrics |= with_spread(f"{name}_decode_tok_s", found)
    for length in prompts:
        for kv_dtype in KV_DTYPES[1:]:
            pairs = zip(rates[f"{kv_dtype}_{length}"], rates[f"f16_{length}"], strict=True)
            metrics[f"{kv_dtype}_over_f16_{length}"] = statistics.median(rate / f16 for rate, f16 in pairs)
    for kv_dtype in engines:
        for length in list(prompts)[1:]:
            pairs = zip(rates[f"{kv_dtype}_{length}"], rates[f"{kv_dtype}_{SHORT_CONTEXT}"], strict=True)
            metrics[f"{kv_dtype}_{length}_over_{SHORT_CONTEXT}_ratio"] = statistics.median(a / b for a, b in pairs)
    return metrics | {"tokens": num_tokens, "repeats": bench.repeats}


def _rate(llm: LLM, prompt: Sequence[int], num_tokens: int) -> float:
    """Tokens a second after the first, which reads the rest of the prompt."""
    rate = timed(llm, prompt, num_tokens).decode_tok_s
    if rate is None:
        raise InvariantError("a stream ended before its second token")
    return rate
