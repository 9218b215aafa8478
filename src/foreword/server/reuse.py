"""Between a request and the engine: an answer that is stored or under way already is given instead of computed."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from msgspec import Struct

from foreword.core.sampling_params import SamplingParams
from foreword.llm.outputs import RequestOutput
from foreword.server.account import Reuse
from foreword.server.context import Asker
from foreword.server.flight import Flight, FlightReader, StoredStream
from foreword.server.generation import Piece, PieceStream
from foreword.server.limits import Limits
from foreword.server.metrics import Metrics
from foreword.server.response_cache import (
    Directives,
    Question,
    ResponseCache,
    decode_answer,
    encode_answer,
    is_deterministic,
    not_cached,
)

ResultT = TypeVar("ResultT")


class OffLoop(Protocol):
    """Runs work in a thread."""

    async def __call__(self, work: Callable[[], ResultT]) -> ResultT:
        """What `work` returns or raises."""
        ...


class Started(Struct, frozen=True):
    """Answers under way, and where their pieces come from."""

    outputs: list[RequestOutput]
    stream: PieceStream


class Asked(Struct, frozen=True, kw_only=True):
    """What is wanted of whom, and how to begin computing it."""

    question: Question | None  # None: this request must reach the engine
    params: SamplingParams
    asker: Asker
    prompts: Sequence[Sequence[int]]
    start: Callable[[], Started]
    on_replay: Callable[[RequestOutput], None]  # told of each stored output given again, in a thread


def open_response_cache(limits: Limits, identity: Callable[[], bytes], metrics: Metrics) -> ResponseCache | None:
    """The response cache that was asked for, watched by the metrics; None where none was.

    `identity` names what computes the answers; finding it out takes a hundredth of a second, so only a cache asks.
    """
    if not limits.response_cache_bytes:
        return None
    cache = ResponseCache(limits.response_cache_bytes, limits.response_cache_ttl_s, identity())
    metrics.watch_gauge("foreword:response_cache_entries", "Answers stored", lambda: cache.num_entries)
    metrics.watch_gauge("foreword:response_cache_bytes", "Bytes they take", lambda: cache.num_bytes)
    return cache


class ResponseReuse:
    """Decides for each request: stored, under way, or to be computed. Event loop only."""

    def __init__(self, cache: ResponseCache | None, off_loop: OffLoop) -> None:
        self.cache = cache
        self._off_loop = off_loop

    async def begin(self, asked: Asked) -> tuple[Started, Reuse]:
        """Answer from the cache, or start.

        Raises:
            ApiError: 504, the client wanted a stored answer or none.
            ForewordError: what `start` raises.
        """
        cache, question = self.cache, asked.question
        directives = Directives() if question is None else question.directives
        if cache is None or question is None or not is_deterministic(asked.params):
            if directives.only_if_cached:
                raise not_cached()
            return asked.start(), Reuse(None if cache is None else "bypass")
        key = await self._off_loop(lambda: cache.key(question, asked.asker.namespace, asked.prompts))
        if not directives.no_cache:
            record = cache.find(asked.asker.tenant.domain, key, directives.max_age_s)
            if record is not None:
                outputs, pieces = await self._off_loop(lambda: _replayed(record, asked.on_replay))
                return Started(outputs, StoredStream(pieces)), Reuse("hit")
            flight = cache.flights.get(key)
            if flight is not None and flight.can_board:
                return self._along(cache, flight, key, asked)
        if directives.only_if_cached:
            raise not_cached()
        if directives.no_store:
            return asked.start(), Reuse("miss")
        flight, reuse = self._fly(cache, key, asked), Reuse("miss")
        outputs = list(flight.outputs)
        return Started(outputs, FlightReader(flight, outputs, reuse)), reuse

    def _along(self, cache: ResponseCache, flight: Flight, key: bytes, asked: Asked) -> tuple[Started, Reuse]:
        outputs = list(flight.outputs)
        reuse = Reuse("hit" if flight.has_ended else "shared")  # it has ended when it is just being stored

        def hand_over() -> tuple[Flight, bool]:
            other = cache.flights.get(key)
            return (other, True) if other is not None and other.can_board else (self._fly(cache, key, asked), False)

        return Started(outputs, FlightReader(flight, outputs, reuse, hand_over=hand_over)), reuse

    def _fly(self, cache: ResponseCache, key: bytes, asked: Asked) -> Flight:
        """Compute for all who ask until it is stored; with one for the same key under way, for this request alone."""
        epoch = cache.epoch

        async def on_end(flight: Flight) -> None:
            try:
                if flight.is_complete and cache.epoch == epoch:
                    with suppress(RuntimeError):  # the server stops, and its threads have
                        record = await self._off_loop(lambda: encode_answer(flight.outputs, flight.pieces))
                        if cache.epoch == epoch:
                            cache.store(asked.asker.tenant.domain, key, record)
            finally:
                if cache.flights.get(key) is flight:
                    del cache.flights[key]

        started = asked.start()
        flight = Flight(started.outputs, started.stream, on_end)
        known = cache.flights.get(key)
        if known is None or not known.can_board:
            cache.flights[key] = flight
        return flight


def _replayed(record: bytes, on_replay: Callable[[RequestOutput], None]) -> tuple[list[RequestOutput], list[Piece]]:
    outputs, pieces = decode_answer(record)
    for output in outputs:
        on_replay(output)
    return outputs, pieces
