"""Whole answers to requests that were answered before, found by exactly what was asked.

    request ──▶ key = everything that decides the answer, the tenant's namespace, the model's identity, the prompt's ids
                 │
                 ├─ stored        replay it: nothing is computed
                 ├─ under way     read along (`foreword.server.flight`): computed once for all who ask at the same time
                 └─ else          compute, and store what ended by itself

An answer is stored as bytes, so that what it takes is known exactly and nobody can change it. Event loop only.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Usage
from foreword.kv_cache.prefix_cache import pack_tokens
from foreword.llm.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from foreword.server.errors import ApiError
from foreword.server.flight import Flight
from foreword.server.generation import Piece
from foreword.server.tenant_store import TenantStore


class Question(Protocol):
    """What a client asked, as far as the response cache must know it."""

    @property
    def directives(self) -> "Directives":
        """What the client wants of the cache."""
        ...

    def digest(self) -> bytes:
        """A hash of everything in the request that decides its answer. Not for the event loop."""
        ...


class Directives(Struct, frozen=True, kw_only=True):
    """A request's `Cache-Control`, as far as it is ours; other directives are none of a server's."""

    no_store: bool = False  # do not keep the answer
    no_cache: bool = False  # do not answer from what is kept
    only_if_cached: bool = False  # or else don't answer
    max_age_s: int | None = None  # do not answer from what is older


def parse_directives(header: str) -> Directives:
    """Read a `Cache-Control` header; what can't be read is passed over, as HTTP wants it."""
    words = [word.strip().lower() for word in header.split(",")]
    age = next((word.removeprefix("max-age=").strip('"') for word in words if word.startswith("max-age=")), "")
    return Directives(
        no_store="no-store" in words,
        no_cache="no-cache" in words,
        only_if_cached="only-if-cached" in words,
        max_age_s=int(age) if age.isascii() and age.isdecimal() and len(age) < 10 else None,
    )


def is_deterministic(params: SamplingParams) -> bool:
    """True when the same request has the same answer every time."""
    return params.is_greedy or params.seed is not None


def not_cached() -> ApiError:
    """The refusal of a request that wanted a stored answer or none."""
    return ApiError(504, "only-if-cached: this request has no stored answer", None, "not_cached")


class _StoredPiece(msgspec.Struct, array_like=True):
    prompt_index: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: list[PositionLogprobs]
    finish_reason: str | None
    stop_reason: str | int | None
    completion_tokens: int  # of its prompt's answers, as they stood then


class _StoredPrompt(msgspec.Struct, array_like=True):
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None
    completion_tokens: int


class _Record(msgspec.Struct, array_like=True):
    prompts: list[_StoredPrompt]
    pieces: list[_StoredPiece]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Record)


def encode_answer(outputs: Sequence[RequestOutput], pieces: Sequence[Piece]) -> bytes:
    """A complete answer as bytes. Cost: O(answer)."""
    prompts = [
        _StoredPrompt(o.prompt, o.prompt_token_ids, o.outputs, o.prompt_logprobs, o.usage.completion_tokens)
        for o in outputs
    ]
    stored = [
        _StoredPiece(
            p.prompt_index,
            p.index,
            p.text,
            p.token_ids,
            p.logprobs,
            p.finish_reason,
            p.stop_reason,
            p.usage.completion_tokens,
        )
        for p in pieces
    ]
    return _encoder.encode(_Record(prompts, stored))


def decode_answer(record: bytes) -> tuple[list[RequestOutput], list[Piece]]:
    """The answer again, its prompts read whole from the cache: nothing of it was computed. Cost: O(answer)."""
    found = _decoder.decode(record)
    outputs = [
        RequestOutput("", p.prompt, p.prompt_token_ids, p.outputs, p.prompt_logprobs, _reused(p, p.completion_tokens))
        for p in found.prompts
    ]
    pieces = [
        Piece(
            prompt_index=p.prompt_index,
            index=p.index,
            text=p.text,
            token_ids=p.token_ids,
            logprobs=p.logprobs,
            finish_reason=p.finish_reason,
            stop_reason=p.stop_reason,
            usage=_reused(found.prompts[p.prompt_index], p.completion_tokens),
        )
        for p in found.pieces
    ]
    return outputs, pieces


def _reused(prompt: _StoredPrompt, completion_tokens: int) -> Usage:
    total = len(prompt.prompt_token_ids)
    return Usage(prompt_tokens=total, cached_tokens=total, completion_tokens=completion_tokens)


class ResponseCache:
    """Answers by key, within a budget of bytes and a lifetime; and the answers under way."""

    def __init__(
        self, max_bytes: int, ttl_s: float, identity: bytes, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.epoch = 0  # raised by `reset`: answers begun before are not stored after
        self.flights: dict[bytes, Flight] = {}
        self._identity = identity
        self._records = TenantStore(max_bytes, ttl_s, clock=clock)

    @property
    def num_entries(self) -> int:
        """Answers stored."""
        return self._records.num_entries

    @property
    def num_bytes(self) -> int:
        """Bytes they take."""
        return self._records.num_bytes

    def key(self, question: Question, namespace: bytes, prompts: Sequence[Sequence[int]]) -> bytes:
        """What an answer is found by. Cost: O(prompts and body); not for the event loop.

        The prompt's ids are part of it, since they depend on more than the text: earlier answers of a conversation
        stand in them as they were generated.
        """
        parts = (b"response 1", self._identity, namespace, question.digest(), *map(pack_tokens, prompts))
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def find(self, tenant: bytes, key: bytes, max_age_s: float | None = None) -> bytes | None:
        """The stored answer, if there is one and it is not too old."""
        return self._records.find(tenant, key, max_age_s)

    def store(self, tenant: bytes, key: bytes, record: bytes) -> bool:
        """Keep an answer, in place of an older one; False when it alone takes more than the budget."""
        return self._records.store(tenant, key, record)

    def reset(self) -> None:
        """Forget every answer; those under way go to who waits for them, and are not stored."""
        self.epoch += 1
        self._records.clear()
