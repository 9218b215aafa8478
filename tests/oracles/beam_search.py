"""Beam search the naive way: every beam's tokens are computed again from the first one, alone, for each new token.

No blocks, no forks, no scheduler, no early end: all beams of all lengths are kept until `max_tokens` and sorted.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from foreword.core.config import KVDtype
from foreword.core.sampling_params import BeamSearchParams
from foreword.models.base import Model
from foreword.ops.backend import Backend
from tests.oracles.sequential_generate import sequential_logits


@dataclass(frozen=True)
class NaiveBeam:
    """Generated tokens, the sum of their log-probabilities, and the score."""

    token_ids: tuple[int, ...]
    cumulative_logprob: float
    score: float


def beam_search(
    model: Model,
    backend: Backend,
    prompt: Sequence[int],
    params: BeamSearchParams,
    eos: Collection[int],
    *,
    max_model_len: int,
    kv_dtype: KVDtype,
) -> list[NaiveBeam]:
    """The `beam_width` best continuations of a prompt, best first."""
    width, ended = params.beam_width, []
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    longest = min(params.max_tokens, max_model_len - len(prompt))
    for length in range(1, longest + 1):
        grown = []
        for rank, (tokens, total) in enumerate(live):
            logits = sequential_logits(model, [*prompt, *tokens], chunk=16, kv_dtype=kv_dtype)[-1:]
            top = backend.top_logprobs(np.ascontiguousarray(logits), np.zeros(1, np.int32), 2 * width)
            for token, logprob in zip(top.top_ids[0].tolist(), top.top_logprobs[0].tolist(), strict=True):
                grown.append((-(total + logprob), rank, token, (*tokens, token)))
        grown.sort()
        over = [g for g in grown if g[2] in eos and not params.ignore_eos]
        going = [g for g in grown if g not in over][:width]
        if length == longest:
            over, going = sorted(over + going), []
        ended += [NaiveBeam(g[3], -g[0], -g[0] / length**params.length_penalty) for g in over]
        live = [(g[3], -g[0]) for g in going]
        if params.early_stopping and len(ended) >= width:
            break
    return sorted(ended, key=lambda beam: -beam.score)[:width]
