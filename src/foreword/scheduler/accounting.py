"""Counting tokens: each known token once as cached or computed, and repeated work apart."""

from collections.abc import Mapping

from msgspec import Struct

from foreword.core.outputs import SchedulerOutput
from foreword.core.sequence import Sequence
from foreword.core.types import SequenceId
from foreword.kv_cache.manager import KVCacheManager


class SchedulerCounters(Struct):
    """What the scheduler did since the start. `computed = prefilled + decoded + recomputed + drafted - accepted`."""

    num_steps: int = 0
    computed_tokens: int = 0  # forward passes of one token
    prefilled_tokens: int = 0  # of these, prompt tokens for the first time
    decoded_tokens: int = 0  # of these, generated tokens for the first time
    recomputed_tokens: int = 0  # of these, repeated work: after preemption, or in the naive loop
    cached_tokens: int = 0  # prompt tokens whose forward pass was skipped
    sampled_tokens: int = 0
    drafted_tokens: int = 0  # computed on the guess that they would be drawn
    accepted_tokens: int = 0  # of these, drawn: computed when drawn, so a step fewer each
    num_preemptions: int = 0
    reserved_slot_steps: int = 0  # slots of held blocks, summed over steps
    unused_slot_steps: int = 0  # of these, slots that hold no token

    @property
    def waste_ratio(self) -> float:
        """Share of reserved slots that held no token, over all steps."""
        return self.unused_slot_steps / self.reserved_slot_steps if self.reserved_slot_steps else 0.0


def account_skipped(sequence: Sequence, num_tokens: int, counters: SchedulerCounters) -> None:
    """The first `num_tokens` tokens need no forward pass. Positions counted before are not counted again.

    So a request's cached tokens are fixed by its first admission; only a prompt preempted half way may later add
    positions nobody had counted, and `prompt = cached + computed` holds whatever happened.
    """
    prompt_end = min(num_tokens, sequence.prompt_len)
    skipped = max(0, prompt_end - sequence.num_accounted)
    sequence.usage.cached_tokens += skipped
    counters.cached_tokens += skipped
    sequence.num_accounted = max(sequence.num_accounted, num_tokens)


def account_computed(sequence: Sequence, start: int, num_tokens: int, counters: SchedulerCounters) -> None:
    """Tokens `[start, start + num_tokens)` had their forward pass."""
    end = start + num_tokens
    repeated = max(0, min(end, sequence.num_accounted) - start)
    prompt = max(0, min(end, sequence.prompt_len) - max(start, sequence.num_accounted))
    sequence.usage.computed_tokens += prompt
    sequence.usage.recomputed_tokens += repeated
    counters.computed_tokens += num_tokens
    counters.prefilled_tokens += prompt
    counters.recomputed_tokens += repeated
    counters.decoded_tokens += num_tokens - prompt - repeated
    sequence.num_accounted = max(sequence.num_accounted, end)


def account_drawn(sequence: Sequence, num_tokens: int, counters: SchedulerCounters) -> None:
    """The sequence took `num_tokens` drawn tokens; negative: so many are dropped again."""
    sequence.usage.completion_tokens += num_tokens
    counters.sampled_tokens += num_tokens


def account_drafts(sequence: Sequence, num_accepted: int, num_drafts: int, counters: SchedulerCounters) -> None:
    """Of `num_drafts` drafts computed behind what the sequence had computed, the first `num_accepted` stay."""
    account_computed(sequence, sequence.num_computed_tokens, num_accepted, counters)
    sequence.num_computed_tokens += num_accepted
    counters.computed_tokens += num_drafts - num_accepted
    counters.drafted_tokens += num_drafts
    counters.accepted_tokens += num_accepted


def account_slots(
    output: SchedulerOutput,
    num_accepted: Mapping[SequenceId, int],
    manager: KVCacheManager,
    counters: SchedulerCounters,
) -> None:
    """Compare the slots held during a step with those that hold a token once it is done. Call before anything ends."""
    block_size = manager.config.block_size
    counters.reserved_slot_steps += manager.pool.num_held * block_size
    for scheduled in output.sequences:
        num_rejected = scheduled.num_drafts - num_accepted.get(scheduled.sequence_id, 0)
        used = scheduled.start + len(scheduled.token_ids) - num_rejected
        counters.unused_slot_steps += len(scheduled.block_table) * block_size - used
