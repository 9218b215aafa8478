"""The loop: let computed tokens catch up with known tokens, within a token budget and a pool of blocks.

There is no prefill mode and no decode mode. A sequence with one token to catch up with is what people call decoding,
one with more is prefilling, and a preempted one is simply behind again.

    schedule():  running sequences first, those nearly caught up before those far behind;
                 then waiting ones, in order, while there is room; then drafts, in what is left over;
    update():    K and V are written: commit them, take the drawn tokens in, end what has ended, fork what can fork;
    branch():    for beam search: go on from a sequence whose next token is chosen above, once with each choice.

No livelock, because

- a request is refused at the door unless it fits in the pool alone;
- preempting is bounded: a sequence preempted `MAX_PREEMPTIONS` times returns only when blocks for its whole length
  are reserved, and from then on nobody can take them;
- whoever waits at the head of the queue for room is not overtaken, so running sequences end and the room comes.
"""

from collections.abc import Mapping

from foreword.core.config import SchedulerConfig
from foreword.core.errors import InvariantError, QueueFullError
from foreword.core.outputs import SampledToken, SchedulerOutput, SequenceStep
from foreword.core.sequence import FinishReason, Request, Sequence, SequenceStatus
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.accounting import SchedulerCounters, account_computed, account_skipped, account_slots
from foreword.scheduler.branching import Branching
from foreword.scheduler.drafting import Drafting, agreed, append_token
from foreword.scheduler.giving_way import GivingWay
from foreword.scheduler.policy import MAX_PREEMPTIONS, LongestHitFirst, arrange_fairly
from foreword.scheduler.queues import SequenceQueue, nearly_caught_up_first
from foreword.scheduler.records import check_sequences, step_of
from foreword.scheduler.reservations import Reservations
from foreword.scheduler.speculation import Speculation
from foreword.scheduler.starting import Start, find_heir, find_start, shared_len, take_blocks
from foreword.scheduler.step_plan import StepPlan
from foreword.scheduler.validation import check_ids, check_request

MAX_PASSED = 64
"""Most sequences a step passes over because what they need is being computed."""


class Scheduler:
    """Decides each step. Owns every `Sequence` it was given and is alone in changing them.

    Calls alternate: `schedule`, then `update` with the drawn tokens (or `discard` when the step failed). `add`,
    `abort` and `finish` may come at any time between two calls.
    """

    def __init__(
        self, config: SchedulerConfig, manager: KVCacheManager, speculation: Speculation | None = None
    ) -> None:
        """Args: `speculation`: who drafts; by default what `config` names."""
        self.config = config
        self.manager = manager
        self.counters = SchedulerCounters()
        self._requests: dict[RequestId, Request] = {}
        self._sequences: dict[SequenceId, Sequence] = {}
        self._waiting = SequenceQueue()
        self._running = SequenceQueue()
        self._reservations = Reservations(manager, config.max_model_len)
        self._branching = Branching(config, manager, self._waiting, self._running)
        self._giving_way = GivingWay(
            manager, self._waiting, self._running, self._branching.undecided, self._reservations, self.counters
        )
        self._drafting = Drafting(config, manager, self._reservations, self.counters, speculation)
        self._order = LongestHitFirst()
        self._watermark = int(config.watermark * manager.config.num_blocks)
        self._pending: SchedulerOutput | None = None

    @property
    def has_unfinished(self) -> bool:
        """True while a sequence waits or runs."""
        return bool(self._sequences)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait to be admitted, preempted ones among them."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that take part in steps, or are between two of them."""
        return len(self._running) + len(self._branching.undecided)

    def check(self, request: Request) -> None:
        """Raise what `add` would raise; changes nothing.

        Raises:
            InvalidRequestError: an id is in use, or the request is malformed (see `check_request`).
            CapacityError: one sequence alone could outgrow the pool.
            QueueFullError: `max_waiting` sequences wait already.
        """
        check_request(request, self.manager.config, self.config.max_model_len)
        check_ids(request, self._requests, self._sequences)
        if len(self._waiting) + len(request.sequences) > self.config.max_waiting:
            raise QueueFullError(f"{len(self._waiting)} sequences wait already, the limit is {self.config.max_waiting}")

    def add(self, request: Request) -> None:
        """Queue a request, whose `sequences` must be its `n` sequences, new and with the prompt's tokens.

        Raises what `check` raises, with nothing changed.
        """
        self.check(request)
        self._requests[request.request_id] = request
        for sequence in request.sequences:
            sequence.usage.prompt_tokens = sequence.prompt_len
            self._sequences[sequence.sequence_id] = sequence
            self.manager.register(sequence, request.namespace, request.tenant, request.leases)
            self._waiting.append(sequence)

    def abort(self, target: RequestId | SequenceId) -> None:
        """End a request, or one sequence of it, and take its blocks back; one that is gone already is left alone."""
        if isinstance(target, str):
            request = self._requests.get(target)
            sequences = list(request.sequences) if request else []
        else:
            sequences = [self._sequences[target]] if target in self._sequences else []
        for sequence in sequences:
            if not sequence.is_finished:
                self._end(sequence, FinishReason.ABORT)

    def finish(self, sequence_id: SequenceId, reason: FinishReason, num_output_tokens: int | None = None) -> None:
        """End a sequence for a cause seen above, such as a stop string. One that has ended already stays as it is.

        What it drew in the last step beyond `num_output_tokens` is dropped, as if it had not been drawn.
        """
        if sequence_id in self._sequences:
            sequence = self._sequences[sequence_id]
            if num_output_tokens is not None:
                self._drafting.drop(sequence, num_output_tokens)
            self._end(sequence, reason)

    def branch(self, parent_id: SequenceId, token_ids: list[TokenId], children: list[Sequence]) -> None:
        """Go on from a sequence whose next token is chosen above, once with each of `token_ids`.

        The sequence takes the first token, each child the next one. A child is a new sequence with the tokens its
        parent has; it shares all the parent's blocks until one of them writes.

        Raises:
            InvariantError: no choice is awaited for the sequence, or the children do not fit; nothing changed.
        """
        parent = self._branching.check(parent_id, token_ids, children, self._sequences)
        request = self._requests[parent.request_id]
        request.sequences = [s for s in request.sequences if not s.is_finished] + children
        for child in children:
            self._sequences[child.sequence_id] = child
            self.manager.register(child, request.namespace, request.tenant)
        self._branching.fork(parent, children)
        for sequence, token_id in zip((parent, *children), token_ids, strict=True):
            append_token(sequence, token_id, self.counters)
            self._branching.resume(sequence)

    def schedule(self, now: int) -> SchedulerOutput | None:
        """Decide the next step at logical time `now`; None when no sequence can compute anything.

        Raises:
            InvariantError: the step before was neither updated nor discarded; nothing changed.
        """
        if self._pending is not None:
            raise InvariantError(f"step {self._pending.step} was neither updated nor discarded")
        plan = StepPlan(self.config.token_budget)
        preempting = True
        while preempting and not len(plan):  # a plan that only preempted holds nothing back: plan again
            self.manager.begin_step(now)
            num_preempted = len(plan.preempted)
            self._continue_running(plan)
            preempting = len(plan.preempted) > num_preempted
            if not preempting:
                self._admit_waiting(plan)
        if not len(plan):
            return None
        self._drafting.add(plan, self._running, self._requests)
        self.counters.num_steps += 1
        self._pending = plan.build(self.counters.num_steps, self.manager, self._requests)
        if self.manager.config.debug:
            self.check_invariants()
        return self._pending

    def update(
        self, output: SchedulerOutput, sampled: Mapping[SequenceId, tuple[SampledToken, ...]]
    ) -> list[SequenceStep]:
        """Take in what the step of `output` computed and drew: a token behind the last known one and behind each draft.

        Sequences ended since `schedule` are passed over.

        Returns:
            One record for each sequence that got tokens or ended, in batch order.

        Raises:
            InvariantError: `output` is not the step last scheduled, or a drawn token is missing; nothing changed.
        """
        self._expect(output)
        live = [scheduled for scheduled in output.sequences if scheduled.sequence_id in self._sequences]
        for scheduled in live:
            if scheduled.samples and len(sampled.get(scheduled.sequence_id, ())) != 1 + scheduled.num_drafts:
                raise InvariantError(f"not every token was drawn for sequence {scheduled.sequence_id}")
        self._pending = None
        steps = []
        runs = {s.sequence_id: agreed(s, sampled[s.sequence_id]) for s in live if s.samples}
        account_slots(output, {i: len(run) - 1 for i, run in runs.items()}, self.manager, self.counters)
        self.manager.end_step()
        for scheduled in live:
            sequence = self._sequences[scheduled.sequence_id]
            num_tokens = len(scheduled.token_ids) - scheduled.num_drafts
            account_computed(sequence, scheduled.start, num_tokens, self.counters)
            sequence.num_computed_tokens += num_tokens
            if not self.config.recompute_all:
                sequence.usage.written_tokens += self.manager.commit(sequence)
            if scheduled.samples and self._requests[sequence.request_id].branches:
                self._reservations.stop(sequence)
                self._branching.await_choice(sequence)
            elif scheduled.samples:
                steps.append(self._take_run(sequence, runs[scheduled.sequence_id], scheduled.num_drafts))
            elif not self._draws(sequence) and sequence.num_computed_tokens == sequence.num_tokens:
                self._end(sequence, FinishReason.LENGTH)
                steps.append(step_of(sequence))
        if self.manager.config.debug:
            self.check_invariants()
        return steps

    def discard(self, output: SchedulerOutput) -> None:
        """The step of `output` failed: whatever it may have left half written is dropped, its sequences wait again.

        Raises:
            InvariantError: `output` is not the step last scheduled; nothing changed.
        """
        self._expect(output)
        self._pending = None
        self.manager.end_step()
        for scheduled in reversed(output.sequences):
            sequence = self._sequences.get(scheduled.sequence_id)
            if sequence is not None:
                self._giving_way.send_back(sequence)

    def check_invariants(self) -> None:
        """Check queues, sequences, pool and index. Cost: O(everything).

        Raises:
            InvariantError: something contradicts something else.
        """
        self.manager.check_invariants()
        queues = (self._running, self._waiting, self._branching.undecided)
        check_sequences(self._sequences.values(), queues, self.manager)

    # -- planning a step -------------------------------------------------------------------------------------------

    def _continue_running(self, plan: StepPlan) -> None:
        for sequence in nearly_caught_up_first(self._running):
            if sequence not in self._running:
                continue  # preempted for a sequence before it
            if plan.token_budget == 0:
                break
            self._continue(sequence, plan)

    def _continue(self, sequence: Sequence, plan: StepPlan) -> None:
        """Give the sequence what it needs, shrinking a long chunk to the room there is before taking from others."""
        wanted = min(sequence.num_tokens - sequence.num_computed_tokens, plan.token_budget)
        while sequence in self._running:
            keep = self._reservations.reserved(sequence)
            num_tokens = min(wanted, self.manager.num_tokens_that_fit(sequence, keep))
            if num_tokens > 0:
                allocation = self.manager.allocate_slots(sequence, num_tokens, keep=keep)
                if allocation is not None:
                    plan.add(sequence, num_tokens, allocation)
                    return
            if not self._giving_way.make_room(plan):
                return

    def _admit_waiting(self, plan: StepPlan) -> None:
        if plan.token_budget == 0 or len(self._running) >= self.config.max_num_seqs:
            return
        self._arrange_waiting()
        growth = sum(self._reservations.growth(sequence) for sequence in self._running)
        admitted = plan.copying()  # none of these is a source of a fork in this step
        num_passed = 0
        for sequence in self._waiting:
            if plan.token_budget == 0 or len(self._running) >= self.config.max_num_seqs or num_passed == MAX_PASSED:
                return
            start = self._find_start(sequence, admitted)
            if start.must_wait:
                num_passed += 1
                continue
            while not self._admit(sequence, start, plan, growth):
                if len(self._running) or not self._giving_way.make_room_for_one():
                    return
                start = self._find_start(sequence, admitted)
            admitted.add(sequence.sequence_id)
            growth += self._reservations.growth(sequence)

    def _arrange_waiting(self) -> None:
        arrange_fairly(self._waiting, self._running, self._tenant_of)
        if self.config.admission_order == "longest_hit" and not self.config.recompute_all and len(self._waiting) > 1:
            self._order.arrange(
                self._waiting,
                tenant_of=self._tenant_of,
                hit_len=lambda sequence: self.manager.match(sequence).num_tokens,
            )

    def _find_start(self, sequence: Sequence, admitted: set[SequenceId]) -> Start:
        if self.config.recompute_all:
            return Start()
        siblings = self._requests[sequence.request_id].sequences
        return find_start(sequence, siblings, self._running, admitted, self.manager)

    def _admit(self, sequence: Sequence, start: Start, plan: StepPlan, growth: int) -> bool:
        """Let one waiting sequence run, if the pool has room for all it knows (or, when guaranteed, for its end)."""
        config = self.manager.config
        target, keep = sequence.num_tokens, self._reservations.reserved(sequence)
        if sequence.num_preemptions >= MAX_PREEMPTIONS:
            target = self._reservations.most_computed(sequence)
        elif len(self._running):
            keep += growth + self._watermark
        if start.source is not None:
            self._fork(start.source, sequence)
        for match in start.matches(config.block_size):
            begin = match.num_tokens or sequence.num_computed_tokens
            num_tokens = min(sequence.num_tokens - begin, plan.token_budget)
            later = config.blocks_for(target) - config.blocks_for(begin + num_tokens)
            allocation = self.manager.allocate_slots(sequence, num_tokens, match, keep + later)
            if allocation is not None:
                self._start(sequence, begin)
                plan.add(sequence, num_tokens, allocation)
                return True
        if start.source is not None:
            take_blocks([sequence], self.manager)
        return False

    def _fork(self, source: Sequence, sequence: Sequence) -> None:
        sequence.num_computed_tokens = shared_len(sequence)
        self.manager.fork(source, sequence, sequence.num_computed_tokens)

    def _start(self, sequence: Sequence, start: int) -> None:
        self._order.admitted(sequence, self._waiting, self._tenant_of)
        self._waiting.discard(sequence)
        self._running.append(sequence)
        self._reservations.start(sequence)
        sequence.status = SequenceStatus.RUNNING
        sequence.num_computed_tokens = start
        account_skipped(sequence, start, self.counters)

    # -- taking a step in ------------------------------------------------------------------------------------------

    def _expect(self, output: SchedulerOutput) -> None:
        if self._pending is not output:
            raise InvariantError(f"step {output.step} is not the step last scheduled")

    def _hand_down(self, sequence: Sequence) -> None:
        """A sequence that ends leaves the prompt it has computed to a sibling that still waits for it."""
        siblings = self._requests[sequence.request_id].sequences
        heir = find_heir(sequence, siblings, self._running, self._waiting, self.manager)
        if heir is not None and not self.config.recompute_all:
            self._fork(sequence, heir)

    def _take_run(self, sequence: Sequence, run: tuple[SampledToken, ...], num_drafts: int) -> SequenceStep:
        taken, reason = self._drafting.take(sequence, run, num_drafts, self._requests[sequence.request_id])
        if reason is not None:
            self._end(sequence, reason)
        elif self.config.recompute_all:
            sequence.num_computed_tokens = 0
        return step_of(sequence, *taken)

    def _tenant_of(self, sequence: Sequence) -> bytes:
        return self._requests[sequence.request_id].tenant

    def _draws(self, sequence: Sequence) -> bool:
        return not self._requests[sequence.request_id].prefill_only

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence not in self._waiting and self._pending is None:
            self._hand_down(sequence)
            sequence.usage.written_tokens += self.manager.free(sequence, keep_tail=not self.config.recompute_all)
        self.manager.free(sequence, keep_tail=False)  # while a step is under way, its last block may be half written
        self.manager.forget(sequence)
        self._waiting.discard(sequence)
        self._running.discard(sequence)
        self._branching.undecided.discard(sequence)
        self._reservations.stop(sequence)
        self._order.forget(sequence)
        self._drafting.forget(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        del self._sequences[sequence.sequence_id]
        request = self._requests[sequence.request_id]
        if all(sibling.is_finished for sibling in request.sequences):
            del self._requests[sequence.request_id]
