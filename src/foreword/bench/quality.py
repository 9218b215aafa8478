"""What rounding costs: distributions of a model as it is run against the same file at full precision.

The tested path has the weights and K/V as the options say (for a 4-bit file: 4-bit weights, activations rounded to
int8, int16 K/V). The reference path dequantises the same file to f32 and keeps K and V in f32. Both read the same text,
each token seeing all before it; the next-token distributions of every position are compared whole.
"""

import math
from array import array
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from foreword.bench.bench import Bench
from foreword.bench.result import Metrics
from foreword.core.config import CacheConfig
from foreword.core.errors import InvalidRequestError
from foreword.core.outputs import ScheduledSequence, SchedulerOutput
from foreword.core.types import SequenceId, TokenId, ceil_div
from foreword.llm import EngineOptions
from foreword.llm.loading import make_backend
from foreword.models.registry import load_model
from foreword.ops.backend import F32
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

NUM_TOKENS = 2000
_CHUNK = 256  # tokens a step
_SLICE = 64  # rows of logits held at once, in each path


def built_in_text() -> str:
    """English prose written for this measurement, so that no model has read it; the same on every machine."""
    return (files("foreword.bench") / "prose.txt").read_text("utf-8")


def quality(bench: Bench, text: str) -> Metrics:
    """Perplexity of both paths over a text's first 2,000 tokens, and their mean KL divergence in nats.

    Raises:
        InvalidRequestError: the text has fewer than two tokens.
    """
    ids = bench.llm.tokenizer.encode(text, add_special_tokens=True, parse_special=False)
    ids = ids[: min(NUM_TOKENS, bench.llm.summary.max_model_len)]
    if len(ids) < 2:
        raise InvalidRequestError("text", "at least two tokens", len(ids))
    tested = _Reader(bench.path, bench.options, len(ids))
    reference = _Reader(bench.path, replace(bench.options, weight_dtype="f32", kv_dtype="f32"), len(ids))
    divergence = nll_tested = nll_reference = 0.0
    for start in range(0, len(ids), _CHUNK):
        bench.tell(f"quality · {start:,} of {len(ids):,} tokens")
        part = ids[start : start + _CHUNK]
        following = ids[start + 1 : start + 1 + len(part)]
        hidden, hidden_reference = tested.read(part, start), reference.read(part, start)
        for first in range(0, len(following), _SLICE):
            rows = slice(first, min(first + _SLICE, len(following)))
            p = reference.log_probabilities(hidden_reference[rows])
            q = tested.log_probabilities(hidden[rows])
            picked = np.arange(len(p)), np.asarray(following[rows])
            divergence += float((np.exp(p) * (p - q)).sum())
            nll_tested -= float(q[picked].sum())
            nll_reference -= float(p[picked].sum())
    count = len(ids) - 1
    return {
        "mean_kl": divergence / count,
        "perplexity": math.exp(nll_tested / count),
        "perplexity_f32": math.exp(nll_reference / count),
        "perplexity_over_f32": math.exp((nll_tested - nll_reference) / count),
        "tokens": len(ids),
    }


class _Reader:
    """A model reading one text, chunk by chunk, apart from any engine: its K and V are its own."""

    def __init__(self, path: Path, options: EngineOptions, num_tokens: int) -> None:
        backend = make_backend(options)
        self._model = load_model(path, backend, weight_dtype=options.weight_dtype)
        cache = CacheConfig(
            num_blocks=ceil_div(num_tokens, options.block_size),
            block_size=options.block_size,
            kv_dtype=options.kv_dtype,
        )
        self._table = array("i", range(cache.num_blocks))
        storage = KVStorage(self._model.config, cache)
        self._runner = ModelRunner(self._model, backend, storage, cache.block_size, _CHUNK)

    def read(self, ids: Sequence[int], start: int) -> F32:
        """Hidden states `[T, hidden]` of the next tokens, valid until the next call."""
        tokens = [TokenId(token) for token in ids]
        sequence = ScheduledSequence(SequenceId(0), tokens, start, self._table, num_logits=len(tokens), samples=False)
        return self._runner.forward(SchedulerOutput(start, (sequence,)))

    def log_probabilities(self, hidden: F32) -> NDArray[np.float64]:
        """Natural logarithms `[R, vocab]` of the next token's distribution."""
        logits = self._model.logits(hidden).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits
