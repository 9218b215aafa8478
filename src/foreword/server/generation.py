"""Answers under way: from the engine's steps to pieces of text, for one request of a client."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive

from foreword.core.outputs import SequenceStep
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Usage
from foreword.engine.engine import Engine
from foreword.llm.generation import GenerationTracker, TextWatch
from foreword.llm.outputs import PositionLogprobs, RequestOutput
from foreword.server.account import Account, Reuse, account
from foreword.server.admission import Ticket
from foreword.server.cache_policy.plan import CachePlan
from foreword.server.call_reading import CallReading
from foreword.server.errors import ClientGoneError
from foreword.server.metrics import Metrics
from foreword.server.quotas import Permit
from foreword.text.tokenizer import Tokenizer


class Piece(Struct, frozen=True):
    """What a step added to one continuation."""

    prompt_index: int
    index: int  # which of the prompt's n continuations
    text: str
    token_ids: tuple[int, ...]
    logprobs: list[PositionLogprobs]  # of `token_ids`; empty where none were asked for
    finish_reason: str | None
    stop_reason: str | int | None
    usage: Usage  # the prompt's account so far


class PieceStream(Protocol):
    """Where pieces come from: an `EngineStream`, or an answer that others compute or have computed."""

    on_news: Callable[[], None] | None
    """Called where something has come, or the end, for a reader who would rather not wait in a task."""
    shortcut: Callable[[list[Piece]], bool] | None
    """Given pieces in the engine's thread, where nothing came before that was not taken; False when it can't be."""

    @property
    def is_over(self) -> bool:
        """True once everything was taken and nothing more will come; False while an error is still to be raised."""
        ...

    async def take(self, timeout_s: float | None = None) -> list[Piece]:
        """All that has come, waiting for the first of it; nothing when `timeout_s` passed, or at the end.

        Raises:
            ForewordError: what ended the request before its time.
        """
        ...

    def take_now(self) -> list[Piece]:
        """As `take`, without waiting."""
        ...

    def close(self, error: Exception | None = None) -> None:
        """Take no more; harmless when all is over."""
        ...


class StepReceiver:
    """Makes pieces of steps, in the engine's thread.

    `on_finish` is told of each continuation that ends by itself, before the client can see its end.
    """

    def __init__(
        self,
        outputs: Sequence[RequestOutput],
        params: SamplingParams,
        tokenizer: Tokenizer,
        engine: Engine,
        on_finish: Callable[[RequestOutput, int], None],
        calls: CallReading | None = None,
    ) -> None:
        self._engine = engine
        self._on_finish = on_finish
        self._started: set[str] = set()
        self._trackers = {}
        for index, output in enumerate(outputs):
            watch = None if calls is None else TextWatch(calls.end(params.n), calls.shown)
            finish = partial(engine.finish, output.request_id)
            self._trackers[output.request_id] = index, GenerationTracker(output, params, tokenizer, finish, watch)

    def __call__(self, step: SequenceStep) -> Piece:
        """Take in one record."""
        prompt_index, tracker = self._trackers[step.request_id]
        delta = tracker.apply(step, prompt_index)
        answer = tracker.output.outputs[step.index]
        if delta.finish_reason is not None:
            self._on_finish(tracker.output, step.index)
        logprobs = answer.logprobs[-len(delta.token_ids) :] if answer.logprobs and delta.token_ids else []
        return Piece(
            prompt_index=prompt_index,
            index=step.index,
            text=delta.text,
            token_ids=delta.token_ids,
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=answer.stop_reason if delta.finish_reason is not None else None,
            usage=self._usage(tracker.output),
        )

    def _usage(self, output: RequestOutput) -> Usage:
        """The account; with the first piece it counts as written what will be, as the prompt's end is stored last."""
        usage = output.usage
        if output.request_id not in self._started:
            self._started.add(output.request_id)
            if self._engine.is_live(output.request_id):
                return replace(usage, written_tokens=self._engine.expected_written(output.request_id))
        return usage


class Generation:
    """All continuations of a client's request; event loop only, but for what the receiver does."""

    def __init__(
        self,
        outputs: list[RequestOutput],
        stream: PieceStream,
        ticket: Ticket,
        metrics: Metrics,
        started: float,
        plans: Sequence[CachePlan],
        *,
        prefilled: Callable[[str], int],
        reuse: Reuse | None = None,
        permit: Permit | None = None,
        note: Callable[[Sequence[RequestOutput]], None] | None = None,
    ) -> None:
        self._prefilled = prefilled  # of a request's prompt; asks nobody, for hundreds may wait and be told
        self._note = note  # told once of what the engine was asked
        self._plans = plans  # one a prompt
        self.outputs = outputs  # complete once `is_over`; the engine's thread writes to them before
        self._stream = stream
        self._reuse = reuse or Reuse()
        self._permit = permit
        self._ticket = ticket
        self._metrics = metrics
        self._started = started
        self._last: dict[tuple[int, int], float] = {}
        self._is_counted = False
        self.was_left = False

    @property
    def is_over(self) -> bool:
        """True once everything was taken and nothing more will come."""
        return self._stream.is_over

    @property
    def account(self) -> Account:
        """The tokens of all prompts together; final once `is_over`."""
        return account((output.usage for output in self.outputs), self._reuse)

    @property
    def usage(self) -> Account:
        """The account as the answer tells it; the same unless a provider's rules are followed."""
        return self.told([output.usage for output in self.outputs])

    def told(self, usages: Sequence[Usage]) -> Account:
        """Accounts of the prompts, in their order, as the answer tells them."""
        pairs = zip(self._plans, usages, strict=True)
        return sum((plan.told(account([usage], self._reuse)) for plan, usage in pairs), Account())

    async def take(self, timeout_s: float | None = None) -> list[Piece]:
        """Pieces that have come; none when `timeout_s` passed or all is over.

        Raises:
            ForewordError: what ended the request before its time.
        """
        try:
            return self._taken(await self._stream.take(timeout_s))
        except Exception:
            self._count(failed=True)
            raise

    def take_now(self) -> list[Piece]:
        """As `take`, without waiting."""
        try:
            return self._taken(self._stream.take_now())
        except Exception:
            self._count(failed=True)
            raise

    def prefilled(self) -> tuple[int, int]:
        """Prompt tokens read or computed so far, of how many; all prompts together."""
        total = sum(len(output.prompt_token_ids) for output in self.outputs)
        return sum(self._prefilled(output.request_id) for output in self.outputs), total

    def call_on_news(self, act: Callable[[], None] | None) -> None:
        """Call `act` whenever there may be something to take, or all is over; None: no longer."""
        self._stream.on_news = act

    def call_directly(self, act: Callable[[list[Piece]], bool] | None) -> None:
        """Call `act` in the engine's thread with pieces that would be news, if it can take them; None: no longer.

        The first pieces and the last never go this way.
        """
        self._stream.shortcut = act

    def passed(self, pieces: Sequence[Piece]) -> bool:
        """Note pieces that need the loop no more: written, or not read by anybody. Engine's thread; always True."""
        self._time(pieces, self._metrics.next_direct_token)
        return True

    def _taken(self, pieces: list[Piece]) -> list[Piece]:
        if pieces:
            self._ticket.leave()
            self._time(pieces, self._metrics.next_token)
        if self.is_over:
            self._count()
        return pieces

    def close(self) -> None:
        """End what still runs. Harmless when all is over."""
        self._ticket.leave()
        if not self._stream.is_over:
            self._stream.close(ClientGoneError("the client has left"))
            self._count(failed=True)

    @asynccontextmanager
    async def watched(self, receive: Receive) -> AsyncIterator[None]:
        """While the answer is being made, see whether the client is still there; close it on every way out."""
        watcher = asyncio.create_task(self._watch(receive))
        try:
            yield
        finally:
            watcher.cancel()
            self.close()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._stream.is_over:
            self.was_left = True
            self._metrics.cancelled()
            self._stream.close(ClientGoneError("the client has left"))

    def _time(self, pieces: Sequence[Piece], count: Callable[[float], None]) -> None:
        now = time.monotonic()
        if not self._last:
            self._metrics.first_token(now - self._started)
            for plan in self._plans:
                plan.begun()
        for piece in pieces:
            key = piece.prompt_index, piece.index
            before = self._last.get(key)
            if before is not None and piece.token_ids and self._reuse.outcome != "hit":
                count(max(0.0, now - before))  # the engine's thread may have noted a later one meanwhile
            self._last[key] = now

    def _count(self, *, failed: bool = False) -> None:
        if self._is_counted:
            return
        self._is_counted = True
        reasons = [answer.finish_reason for output in self.outputs for answer in output.outputs]
        broken = "abort" if self.was_left else "error"
        ended = [broken if failed or reason is None else reason for reason in reasons]
        total = self.account
        if self._note is not None and not self._reuse.is_reused:
            self._note(self.outputs)
        if self._last and not self._reuse.is_reused:
            self._ticket.end()
        if self._permit is not None and not self._reuse.is_reused:
            self._permit.charge("tokens", total.completion - total.read)
        self._metrics.ended(total, ended, time.monotonic() - self._started)
