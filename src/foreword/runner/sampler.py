"""Logits and settings to tokens. A row's token depends on its logits, its own history, its seed and its position."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foreword.core.outputs import Logprob, SampledToken, SamplingRow, TokenLogprobs
from foreword.core.types import TokenId
from foreword.ops.backend import F32, Backend, SamplingBatch, TopLogprobs


class Sampler:
    """Draws tokens through a backend; holds no state, so a row drawn twice gives the same token."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def sample(self, logits: F32, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """One token a row.

        Shapes   `logits [R, vocab]` f32, mutated where a row has penalties, a bias or forbidden tokens.
        """
        logprobs = self._top_logprobs_source(logits, rows)
        for row_logits, row in zip(logits, rows, strict=True):
            _adjust(row_logits, row)
        tokens = self._backend.sample(logits, _sampling_batch(rows))
        return self._with_logprobs(tokens, rows, logprobs)

    def prompt_logprobs(self, logits: F32, next_token_ids: Sequence[int], k: int) -> list[TokenLogprobs]:
        """Logprobs of the tokens that followed each row, and the k most likely ones; `logits [R, vocab]`."""
        top = self._backend.top_logprobs(logits, np.asarray(next_token_ids, np.int32), k)
        return [_token_logprobs(top, r, token, k) for r, token in enumerate(next_token_ids)]

    def logprobs_of(self, logits: F32, token_ids: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """Logprobs of each row's own tokens, in their order; `logits [R, vocab]`. Nothing is sorted.

        Cost     one pass over a row for each of its tokens.
        """
        most = max(map(len, token_ids), default=0)
        padded = np.zeros((most, len(token_ids)), np.int32)
        for r, ids in enumerate(token_ids):
            padded[: len(ids), r] = ids
        columns = [self._backend.top_logprobs(logits, column, 0).logprobs for column in padded]
        return [tuple(float(column[r]) for column in columns[: len(ids)]) for r, ids in enumerate(token_ids)]

    def _top_logprobs_source(self, logits: F32, rows: Sequence[SamplingRow]) -> F32 | None:
        # Reported logprobs are the model's own: taken before penalties, bias and temperature.
        if all(row.params.logprobs is None for row in rows):
            return None
        changed = any(_is_adjusted(row) for row in rows)
        return logits.copy() if changed else logits

    def _with_logprobs(
        self, tokens: NDArray[np.int32], rows: Sequence[SamplingRow], logits: F32 | None
    ) -> list[SampledToken]:
        if logits is None:
            return [SampledToken(TokenId(token)) for token in tokens.tolist()]
        most = max(row.params.logprobs or 0 for row in rows)
        top = self._backend.top_logprobs(logits, tokens, most)
        sampled = []
        for r, (token, row) in enumerate(zip(tokens.tolist(), rows, strict=True)):
            k = row.params.logprobs
            found = None if k is None else _token_logprobs(top, r, token, k)
            sampled.append(SampledToken(TokenId(token), found))
        return sampled


def takes_best(row: SamplingRow) -> bool:
    """True for a row that draws the first of its largest logits as they are, and has nothing else to tell."""
    return row.params.temperature == 0 and row.params.logprobs is None and not _is_adjusted(row)


def _sampling_batch(rows: Sequence[SamplingRow]) -> SamplingBatch:
    params = [row.params for row in rows]
    return SamplingBatch(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([p.top_k for p in params], np.int32),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seed=np.array([row.seed for row in rows], np.uint64),
        sequence_index=np.array([row.sequence_index for row in rows], np.uint32),
        position=np.array([row.position for row in rows], np.uint32),
    )


def _token_logprobs(top: TopLogprobs, row: int, token: int, k: int) -> TokenLogprobs:
    found: TokenLogprobs = {token: Logprob(float(top.logprobs[row]), int(top.ranks[row]))}
    for rank, (other, value) in enumerate(
        zip(top.top_ids[row, :k].tolist(), top.top_logprobs[row, :k].tolist(), strict=True), start=1
    ):
        found.setdefault(other, Logprob(value, rank))
    return found


def _has_penalties(row: SamplingRow) -> bool:
    p = row.params
    return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0


def _is_adjusted(row: SamplingRow) -> bool:
    return (
        row.allowed_tokens is not None
        or bool(row.params.logit_bias)
        or bool(row.forbidden_token_ids)
        or _has_penalties(row)
    )


def _adjust(logits: F32, row: SamplingRow) -> None:
    """Penalties, then bias, then tokens that may not come, or not yet; in place on one row.

    Source   repetition: Keskar et al., CTRL, 2019, over prompt and output; presence and frequency: OpenAI's rule,
             over the output alone.
    """
    params = row.params
    if _has_penalties(row):
        past = row.past_token_ids
        output, counts = np.unique(np.array(past[row.prompt_len :], np.int64), return_counts=True)
        if params.repetition_penalty != 1:
            seen = np.unique(np.array(past, np.int64))
            penalty = np.float32(params.repetition_penalty)
            logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        frequency = counts.astype(np.float32) * np.float32(params.frequency_penalty)
        logits[output] -= frequency + np.float32(params.presence_penalty)
    if params.logit_bias:
        ids = np.fromiter(params.logit_bias.keys(), np.int64)
        logits[ids] += np.fromiter(params.logit_bias.values(), np.float32)
    if row.allowed_tokens is not None:
        _mask(logits, row.allowed_tokens, row.forbidden_token_ids)
    elif row.forbidden_token_ids:
        logits[list(row.forbidden_token_ids)] = -np.inf


def _mask(logits: F32, allowed_tokens: bytes, forbidden: Sequence[TokenId]) -> None:
    """Leave what is allowed and not forbidden; what is allowed, where that is nothing."""
    bits = np.unpackbits(np.frombuffer(allowed_tokens, np.uint8), count=len(logits), bitorder="little")
    if forbidden:
        kept = bits[list(forbidden)]
        bits[list(forbidden)] = 0
        if not bits.any():
            bits[list(forbidden)] = kept
    np.copyto(logits, np.float32(-np.inf), where=bits == 0)
