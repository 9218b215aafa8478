"""Drafts in a step: who is given some, and what of them came true.

    plan       the last known token, then drafts        t  d1 d2 d3
    drawn      one token behind each of them            d1 d2 x  y
    taken      up to the first that is not the draft    d1 d2 x          y was drawn behind a token that never was

Drafts take what a step leaves over, tokens and blocks: nobody is admitted later or preempted for one, save that a
stored prefix may be evicted some steps sooner. K and V of those not taken are written over by the next step and never
findable, since only computed positions of known tokens are.
"""

from collections.abc import Mapping

from foreword.core.config import SchedulerConfig
from foreword.core.outputs import SampledToken, ScheduledSequence
from foreword.core.sequence import FinishReason, Request, Sequence
from foreword.core.types import RequestId, TokenId
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.accounting import SchedulerCounters, account_drafts, account_drawn
from foreword.scheduler.queues import SequenceQueue
from foreword.scheduler.reservations import Reservations
from foreword.scheduler.speculation import MAX_DRAFTS, NoSpeculation, PromptLookupSpeculation, Speculation
from foreword.scheduler.step_plan import StepPlan
from foreword.scheduler.stopping import final_len, finish_reason


def make_speculation(config: SchedulerConfig) -> Speculation:
    """The one that the settings name; the naive loop computes everything anew and has no use for drafts."""
    if config.speculation == "prompt_lookup" and not config.recompute_all:
        return PromptLookupSpeculation()
    return NoSpeculation()


class Drafting:
    """Gives drafts to those that decode, out of what a plan leaves over, and takes in what was drawn behind them."""

    def __init__(
        self,
        config: SchedulerConfig,
        manager: KVCacheManager,
        reservations: Reservations,
        counters: SchedulerCounters,
        speculation: Speculation | None = None,
    ) -> None:
        """Args: `speculation`: who guesses; by default what `config` names."""
        self._config, self._manager = config, manager
        self._reservations, self._counters = reservations, counters
        self._speculation = make_speculation(config) if speculation is None else speculation

    def add(self, plan: StepPlan, running: SequenceQueue, requests: Mapping[RequestId, Request]) -> None:
        """Add the drafts that pay. Blocks that running sequences need next stay available."""
        budget, growth = self._config.token_budget, None
        for sequence in plan.decoding():
            request = requests[sequence.request_id]
            if request.branches or request.constraint is not None:
                continue
            drafts = self._speculation.propose(sequence, self._most(sequence, plan), budget - plan.token_budget)
            if not drafts:
                continue
            if growth is None:
                growth = sum(self._reservations.growth(other) for other in running)
            keep = growth + self._reservations.reserved(sequence)
            allocation = self._manager.allocate_slots(sequence, 1 + len(drafts), keep=keep)
            if allocation is not None:
                plan.add_drafts(sequence, drafts, allocation)

    def take(
        self, sequence: Sequence, run: tuple[SampledToken, ...], num_drafts: int, request: Request
    ) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
        """Append the tokens of a run; returns those taken, and why the sequence ends with the last, if it does.

        A token that ends the sequence is taken only when it comes first, else the next step draws it once more. So
        whoever reads the text may end the sequence before it, at a stop string, and nothing is to be undone but
        tokens. For the same reason drafts count as computed from here on and are committed by the next step.
        """
        self._speculation.learn(sequence.sequence_id, [token.token_id for token in run])
        taken: tuple[SampledToken, ...] = ()
        reason = None
        for token in run:
            append_token(sequence, token.token_id, self._counters)
            reason = finish_reason(sequence, request.eos_token_ids, self._config.max_model_len)
            if reason is not None and taken:
                self.drop(sequence, sequence.num_output_tokens - 1)
                reason = None
                break
            taken = (*taken, token)
            if reason is not None:
                break
        if reason is FinishReason.STOP and sequence.token_ids[-1] in sequence.params.stop_token_ids:
            sequence.stop_token_id = sequence.token_ids[-1]
        account_drafts(sequence, len(taken) - 1, num_drafts, self._counters)
        return taken, reason

    def drop(self, sequence: Sequence, num_output_tokens: int) -> None:
        """Drop what a sequence drew in the last step beyond `num_output_tokens`, as if it had not been drawn.

        The last token it keeps counts as not computed. Nothing dropped is findable: the next step would commit it.
        """
        num_dropped = sequence.num_output_tokens - num_output_tokens
        if num_dropped > 0:
            del sequence.token_ids[-num_dropped:]
            sequence.num_computed_tokens = min(sequence.num_computed_tokens, sequence.num_tokens - 1)
            account_drawn(sequence, -num_dropped, self._counters)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._speculation.forget(sequence.sequence_id)

    def _most(self, sequence: Sequence, plan: StepPlan) -> int:
        """A run that is verified stays one short of a sequence's end, see `take`."""
        left = final_len(sequence, self._config.max_model_len) - sequence.num_tokens - 2
        return max(0, min(MAX_DRAFTS, plan.token_budget, left))


def agreed(scheduled: ScheduledSequence, drawn: tuple[SampledToken, ...]) -> tuple[SampledToken, ...]:
    """The tokens drawn up to the first that is not the draft."""
    first = len(scheduled.token_ids) - scheduled.num_drafts
    for count, (draft, token) in enumerate(zip(scheduled.token_ids[first:], drawn, strict=False), start=1):
        if token.token_id != draft:
            return drawn[:count]
    return drawn


def append_token(sequence: Sequence, token_id: TokenId, counters: SchedulerCounters) -> None:
    """The sequence goes on with a token."""
    sequence.token_ids.append(token_id)
    account_drawn(sequence, 1, counters)
