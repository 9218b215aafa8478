"""How a waiting sequence may start, so that nothing is computed twice.

    holds blocks already        it was handed a prompt: go on from there
    a sibling has the prompt    fork from it
    a sibling computes it       wait
    a stranger computes a       wait: it will be findable, and is then reported as cached
      prefix not findable yet
    otherwise                   start behind the longest stored prefix

Whoever is waited for is running, so it gets on in every step; when it is preempted, aborted or fails it runs no
more, and nobody waits for it any longer.

A fork starts one token short of the prompt, as every hit does: it computes the last prompt token again, into a block
of its own, and so gets its own row of logits to draw from. Nothing else in the engine needs to know that `n > 1`.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct

from foreword.core.sequence import Sequence
from foreword.core.types import SequenceId
from foreword.kv_cache.manager import NO_MATCH, KVCacheManager
from foreword.kv_cache.prefix_cache import PrefixMatch
from foreword.scheduler.queues import SequenceQueue
from foreword.scheduler.step_plan import wants_prompt_logprobs


class Start(Struct, frozen=True):
    """What a waiting sequence should do: wait, or fork from `source`, or begin behind `match`."""

    must_wait: bool = False
    source: Sequence | None = None
    match: PrefixMatch = NO_MATCH

    def matches(self, block_size: int) -> list[PrefixMatch]:
        """Ways to begin, best first: with the whole hit, or without its partial block if the copy has no room."""
        if self.match.partial is None:
            return [self.match]
        return [self.match, self.match.whole_blocks(block_size)]


def shared_len(sequence: Sequence) -> int:
    """Leading tokens a sequence can take from any sibling that has computed the prompt."""
    return min(sequence.prompt_len, sequence.num_tokens - 1)


def take_blocks(sequences: Iterable[Sequence], manager: KVCacheManager) -> bool:
    """Take back what sequences hold; False when none holds anything. What they still need is computed again.

    Their last blocks are not kept findable: a copy into one may have been planned and never made.
    """
    holders = [sequence for sequence in sequences if manager.holds(sequence)]
    for sequence in holders:
        manager.free(sequence, keep_tail=False)
        sequence.num_computed_tokens = 0
    return bool(holders)


def find_heir(
    ending: Sequence,
    siblings: Iterable[Sequence],
    running: SequenceQueue,
    waiting: SequenceQueue,
    manager: KVCacheManager,
) -> Sequence | None:
    """The waiting sibling to which a sequence should leave the prompt it has computed; None when nobody needs it.

    One heir is enough: it is admitted before the others and they fork from it.
    """
    others = [sibling for sibling in siblings if sibling is not ending]
    if ending.num_computed_tokens < ending.prompt_len or any(sibling in running for sibling in others):
        return None
    for sibling in others:
        if sibling in waiting and shared_len(sibling) and not manager.holds(sibling):
            return sibling
    return None


def find_start(
    sequence: Sequence,
    siblings: Iterable[Sequence],
    running: SequenceQueue,
    admitted: Collection[SequenceId],
    manager: KVCacheManager,
) -> Start:
    """Decide for one waiting sequence; `admitted` have joined `running` in the step being planned, or copy in it.

    Those are no source of a fork yet: their own last block may be a copy still to be made.
    """
    if manager.holds(sequence):
        return Start()
    active = [sibling for sibling in siblings if sibling in running] if shared_len(sequence) else []
    for sibling in active:
        if sibling.num_computed_tokens >= sequence.prompt_len and sibling.sequence_id not in admitted:
            return Start(source=sibling)
    if active:
        return Start(must_wait=True)
    if wants_prompt_logprobs(sequence):
        return Start()
    match = manager.match(sequence)
    return Start(must_wait=_is_being_computed(sequence, match.num_tokens, running, manager), match=match)


def _is_being_computed(sequence: Sequence, found: int, running: SequenceQueue, manager: KVCacheManager) -> bool:
    """True while a running sequence computes at least one more block that `sequence` could then find."""
    block_size = manager.config.block_size
    for other in running:
        if other.num_tokens - other.num_computed_tokens > 1:
            shared = manager.storable_prefix(sequence, other, found) // block_size * block_size
            if shared > max(found, other.num_computed_tokens):
                return True
    return False
