"""Ties scheduler and runner together, one step at a time. Never sees a string of text."""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast

from msgspec.structs import replace

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import InvalidRequestError, InvariantError
from foreword.core.outputs import SchedulerOutput, SequenceStep, StepResult, TokenLogprobs
from foreword.core.probe import Probe, Reading
from foreword.core.sampling_params import MAX_N, SEED_BITS, BeamSearchParams, SamplingParams
from foreword.core.sequence import FinishReason, Lease, Request, Sequence, SequenceStatus
from foreword.core.token_constraint import TokenConstraint
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.engine.beam_search import BeamGroup, BeamSearches
from foreword.engine.constraints import Constraints
from foreword.engine.metrics import EngineStats, engine_stats
from foreword.engine.publishing import publish_prefix
from foreword.engine.step_inputs import probes, prompt_rows, sampling_rows
from foreword.engine.traffic import Traffic
from foreword.kv_cache.events import CacheEvent, EventLog
from foreword.kv_cache.explain import MissReport
from foreword.kv_cache.manager import KVCacheManager
from foreword.runner.model_runner import ModelRunner
from foreword.scheduler.scheduler import Scheduler
from foreword.scheduler.validation import check_request


class Engine:
    """Runs requests to their end. Deterministic: equal calls give equal steps and equal tokens.

    `draw_seed` gives the seed of a request that names none; it is the only source of randomness. `publish_events` is
    given what became findable and what ceased to be, numbered, after whatever changed it; without it nothing is kept.
    The hashes it tells of start from `root`, the identity of weights, tokenizer and settings. `clock` tells
    milliseconds, by which lifetimes of prefixes end; without it time is counted in steps.
    One thread uses an engine at a time.
    """

    def __init__(
        self,
        runner: ModelRunner,
        cache: CacheConfig,
        scheduler: SchedulerConfig,
        *,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(SEED_BITS),
        publish_events: Callable[[list[tuple[int, CacheEvent]]], None] | None = None,
        root: bytes = b"",
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._runner = runner
        self._publish_events = publish_events
        self._events = None if publish_events is None else EventLog()
        self._manager = KVCacheManager(cache, self._events, root=root)
        self._scheduler = Scheduler(scheduler, self._manager)
        self._draw_seed = draw_seed
        self._sequences: dict[SequenceId, Sequence] = {}
        self._requests: dict[RequestId, Request] = {}
        self.traffic = Traffic()
        self._beam_searches = BeamSearches(self._scheduler, self._sequences, self._new_sequence_id)
        self._constraints = Constraints()
        self._prompt_logprobs: dict[SequenceId, list[TokenLogprobs | None]] = {}
        self._next_sequence_id = self._num_steps = 0
        self._clock = clock
        self._now = 0
        self._failed: tuple[RequestId, ...] = ()
        self._known_free = self._manager.pool.free_blocks() if cache.debug else frozenset()

    @property
    def has_unfinished(self) -> bool:
        """True while a request waits or runs."""
        return self._scheduler.has_unfinished

    def has_room(self) -> bool:
        """True when the waiting queue takes another request, however many sequences it asks for."""
        waiting = self._scheduler.num_waiting
        return waiting == 0 or waiting + MAX_N <= self._scheduler.config.max_waiting

    @property
    def failed_requests(self) -> tuple[RequestId, ...]:
        """Requests of the last step, if it raised: they wait again. Empty when it did not."""
        return self._failed

    def is_live(self, request_id: str) -> bool:
        """True while a sequence of the request waits or runs."""
        return request_id in self._requests

    def is_waiting(self, request_id: str) -> bool:
        """True while the request is in the queue and nothing of it was computed."""
        request = self._requests.get(RequestId(request_id))
        return request is not None and all(
            s.status is SequenceStatus.WAITING and not s.num_accounted for s in request.sequences
        )

    def prefilled(self, request_id: str) -> int:
        """Leading prompt tokens of a live request that were read or computed; 0 for one that is gone.

        Safe from any thread at any time: it only looks.
        """
        request = self._requests.get(RequestId(request_id))
        return 0 if request is None else min(request.sequences[0].num_computed_tokens, len(request.prompt_token_ids))

    def check(self, prompt_token_ids: Iterable[int], params: SamplingParams) -> None:
        """Raise what `add` would raise for the request itself, changing nothing."""
        self._scheduler.check(self._request(RequestId(""), prompt_token_ids, params, frozenset()))

    def check_alone(self, prompt_token_ids: Iterable[int], params: SamplingParams) -> None:
        """Raise what `add` would raise whatever else waits or runs. Safe from any thread at any time."""
        request = self._request(RequestId(""), prompt_token_ids, params, frozenset())
        check_request(request, self._manager.config, self._scheduler.config.max_model_len)

    def add(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        eos_token_ids: Iterable[int] = (),
        *,
        namespace: bytes = b"",
        tenant: bytes = b"",
        prefill_only: bool = False,
        probe: Probe | None = None,
        leases: tuple[Lease, ...] = (),
        constraint: TokenConstraint | None = None,
    ) -> None:
        """Queue a request.

        It shares prefixes within `namespace` only, what it stores counts towards the pool share of `tenant`, and with
        `prefill_only` its prompt is computed and stored but nothing is drawn; so too with a `probe`, whose reading
        comes with the last record. `leases` keep beginnings of it longer. `constraint` is what
        `params.structured_output` means in tokens.

        Raises:
            InvalidRequestError: the prompt is empty, too long or holds ids outside the vocabulary; the id is in use;
                an answer of some form is asked for, and its constraint is missing.
            CapacityError: it can never fit in the pool.
            QueueFullError: too many requests wait. In each case nothing has changed.
        """
        eos = frozenset(TokenId(t) for t in eos_token_ids)
        request = self._request(RequestId(request_id), prompt_token_ids, params, eos)
        request.namespace, request.tenant, request.prefill_only = namespace, tenant, prefill_only
        request.leases = leases
        if probe is not None:
            self._check_ids("probe", probe.token_ids)
            request.probe, request.prefill_only = probe, True
        request.constraint = constraint
        if params.structured_output is not None and constraint is None and not request.prefill_only:
            raise InvalidRequestError("constraint", "structured_output, compiled", None)
        self._queue(request)
        if params.prompt_logprobs is not None:
            self._prompt_logprobs[request.sequences[0].sequence_id] = [None] * len(request.prompt_token_ids)

    def add_beam_search(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int],
        params: BeamSearchParams,
        eos_token_ids: Iterable[int] = (),
        *,
        namespace: bytes = b"",
        tenant: bytes = b"",
    ) -> BeamGroup:
        """Queue a beam search; the group returned fills as the engine steps. Raises what `add` raises."""
        eos = frozenset(TokenId(t) for t in eos_token_ids)
        request = self._request(RequestId(request_id), prompt_token_ids, params.step_params(), eos)
        request.namespace, request.tenant, request.branches = namespace, tenant, True
        self._queue(request)
        return self._beam_searches.start(request, params)

    def abort(self, request_id: str) -> None:
        """End a request at once, at any point of its life; one that is gone already is left alone."""
        self._scheduler.abort(RequestId(request_id))
        self._forget_finished(RequestId(request_id))
        self._settle()

    def abort_all(self) -> None:
        """End every request."""
        for request_id in list(self._requests):
            self.abort(request_id)

    def finish(self, request_id: str, index: int, num_output_tokens: int | None = None) -> None:
        """End one sequence of a request because its text met a stop string; one that has ended stays as it is.

        With speculation a step may give several tokens, and the text may end before the last of them: those beyond
        `num_output_tokens` are dropped, as if they had not been drawn. Call before the next step.
        """
        request = self._requests.get(RequestId(request_id))
        if request is not None:
            self._scheduler.finish(request.sequences[index].sequence_id, FinishReason.STOP, num_output_tokens)
            self._forget_finished(request.request_id)
            self._settle()

    def step(self) -> StepResult:
        """Schedule, run and sample once; does nothing when there is nothing to do.

        Raises:
            InvariantError: requests wait but none can compute anything (a bug, told instead of hanging).
            Whatever the runner raises: the step's sequences then wait again, with nothing of it kept.
        """
        self._num_steps += 1
        self._now = self._num_steps if self._clock is None else max(self._now, self._clock())
        self._failed = ()
        output = self._scheduler.schedule(self._now)
        if output is None:
            if self._scheduler.has_unfinished:
                raise InvariantError("requests wait, but none of them can compute anything")
            return StepResult(self._num_steps, 0, ())
        self._note_starts(output)
        started = time.perf_counter()
        self._constraints.let_go(output.preempted)
        try:
            result = self._runner.execute(
                output,
                sampling_rows(output, self._sequences, self._requests, self._constraints),
                prompt_rows(output, self._sequences, self._prompt_logprobs),
                probes(output, self._sequences, self._requests),
            )
        except BaseException:
            self._failed = tuple({self._sequences[s.sequence_id].request_id: None for s in output.sequences})
            self._scheduler.discard(output)
            self._constraints.let_go(s.sequence_id for s in output.sequences)
            raise
        self.traffic.stepped(output.num_tokens, time.perf_counter() - started)
        for s in output.sequences:
            found = result.prompt_logprobs.get(s.sequence_id)
            if found is not None:
                self._prompt_logprobs[s.sequence_id][s.start + 1 : s.start + 1 + len(found)] = found
        updated = self._scheduler.update(output, result.sampled)
        steps = [self._with_found(step, result.readings.get(step.sequence_id)) for step in updated]
        steps, failures = self._constraints.take_in(steps)
        for failure in failures:
            self.abort(failure.request_id)
        for step in steps:
            if step.finish_reason is not None:
                self._scheduler.finish(step.sequence_id, step.finish_reason)  # by its constraint; others have ended
                self._forget_finished(step.request_id)
        for request_id in self._beam_searches.take_in(output, result.sampled):
            self._forget_finished(request_id)
        self._settle()
        return StepResult(self._num_steps, output.num_tokens, tuple(steps), failures)

    def query_cache(self, namespace: bytes, token_ids: list[TokenId]) -> int:
        """Tokens of a prompt that would be read from the cache now. Changes nothing."""
        return self._manager.query(namespace, token_ids)

    def explain_cache(self, namespace: bytes, token_ids: list[TokenId]) -> MissReport:
        """The nearest stored prefix of a prompt, where it parts from it, and why. Changes nothing."""
        return self._manager.explain(namespace, token_ids)

    def share_pool(self, shares: Mapping[bytes, float]) -> None:
        """Let what each tenant named has stored take that share of the pool at most, from 0 to 1."""
        self._manager.prefix_cache.share({t: int(s * self._manager.config.num_blocks) for t, s in shares.items()})

    def publish(self, token_ids: list[TokenId]) -> int:
        """See `publish_prefix`; nothing else may run meanwhile."""
        return publish_prefix(self, self._manager, self._scheduler.config.max_model_len, token_ids)

    def reset_cache(self) -> None:
        """Forget every stored prefix. What runs keeps its blocks."""
        self._manager.reset()
        self._tell_events()

    def expected_written(self, request_id: str) -> int:
        """Prompt tokens a live request will have made findable when it ends, if nothing disturbs it.

        Its last block is stored at its end only. For use once the prompt is computed.
        """
        request = self._requests[RequestId(request_id)]
        written, prompt = request.sequences[0].usage.written_tokens, request.prompt_token_ids
        if self._manager.config.prefix_cache != "radix" or self._scheduler.config.recompute_all:
            return written  # the hash index keeps whole blocks only
        known = self._manager.query(request.namespace, [*prompt, prompt[-1]])  # one more, as a query spares the last
        return written + len(prompt) - known

    def stats(self) -> EngineStats:
        """Counters since the start, and how the pool's blocks stand now."""
        return engine_stats(self._scheduler, self._manager)

    def check_invariants(self) -> None:
        """Raise InvariantError unless all bookkeeping adds up. Cost: O(everything)."""
        self._scheduler.check_invariants()

    def _request(
        self,
        request_id: RequestId,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        eos_token_ids: frozenset[TokenId],
    ) -> Request:
        prompt = cast(tuple[TokenId, ...], tuple(prompt_token_ids))
        self._check_vocabulary(prompt, params)
        seed = self._draw_seed() if params.seed is None else params.seed
        first_id = self._next_sequence_id
        sequences = [
            Sequence(
                sequence_id=SequenceId(first_id + index),
                request_id=request_id,
                index=index,
                token_ids=list(prompt),
                prompt_len=len(prompt),
                params=params,
                seed=seed % (1 << SEED_BITS),
            )
            for index in range(params.n)
        ]
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params,
            eos_token_ids=eos_token_ids,
            arrival=self._now,
            sequences=sequences,
        )

    def _queue(self, request: Request) -> None:
        self._scheduler.add(request)
        self._next_sequence_id += request.params.n
        self._requests[request.request_id] = request
        for sequence in request.sequences:
            self._sequences[sequence.sequence_id] = sequence
        self._constraints.add(request)

    def _new_sequence_id(self) -> SequenceId:
        self._next_sequence_id += 1
        return SequenceId(self._next_sequence_id - 1)

    def _check_vocabulary(self, prompt: tuple[TokenId, ...], params: SamplingParams) -> None:
        for field, ids in (
            ("prompt", prompt),
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", params.logit_bias),
        ):
            self._check_ids(field, ids)

    def _check_ids(self, field: str, ids: Collection[int]) -> None:
        vocab_size = self._runner.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise InvalidRequestError(field, f"token ids from 0 to {vocab_size - 1}", (min(ids), max(ids)))

    def _note_starts(self, output: SchedulerOutput) -> None:
        """Note what of each prompt that is begun was stored: after admission, before this step stores anything."""
        for s in output.sequences:
            sequence = self._sequences[s.sequence_id]
            is_begun = sequence.index > 0 or sequence.num_preemptions or sequence.usage.computed_tokens
            if not is_begun and sequence.prompt_len > 1:
                self.traffic.started(sequence.prompt_len, self._manager.explain_start(sequence))

    def _with_found(self, step: SequenceStep, reading: Reading | None) -> SequenceStep:
        found = self._prompt_logprobs.pop(step.sequence_id, None)
        step = step if found is None else replace(step, prompt_logprobs=tuple(found))
        return step if reading is None else replace(step, reading=reading)

    def _settle(self) -> None:
        """After whatever changed the cache: poison what was freed, where asked to, and tell events."""
        if self._manager.config.debug:
            self._poison_freed()
        self._tell_events()

    def _poison_freed(self) -> None:
        free = self._manager.pool.free_blocks()
        self._runner.kv.poison(sorted(free - self._known_free))
        self._known_free = free

    def _tell_events(self) -> None:
        if self._events is not None and self._publish_events is not None:
            events = self._events.take()
            if events:
                self._publish_events(events)

    def _forget_finished(self, request_id: RequestId) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        for sequence in request.sequences:
            if sequence.is_finished:
                self._sequences.pop(sequence.sequence_id, None)
                self._constraints.forget(sequence.sequence_id)
                self._prompt_logprobs.pop(sequence.sequence_id, None)
        if all(sequence.is_finished for sequence in request.sequences):
            del self._requests[request_id]
            self._beam_searches.forget(request_id)
