"""Computing a prompt once for all the sequences of a request.

The first sequence of a request computes the prompt; its siblings wait for it and then fork from it. A fork starts
one token short of the prompt, as every hit does: it computes the last prompt token again, into a block of its own,
and so gets its own row of logits to draw from. Nothing else in the engine needs to know that `n > 1`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from foreword.core.sequence import Sequence
from foreword.core.types import SequenceId
from foreword.scheduler.queues import SequenceQueue


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a waiting sequence should do about its siblings: fork, wait, or neither."""

    source: Sequence | None = None
    must_wait: bool = False


ALONE = Sharing()


def shared_len(sequence: Sequence) -> int:
    """Leading tokens a sequence can take from any sibling that has computed the prompt."""
    return min(sequence.prompt_len, sequence.num_tokens - 1)


def find_sharing(
    sequence: Sequence, siblings: Iterable[Sequence], running: SequenceQueue, admitted: Collection[SequenceId]
) -> Sharing:
    """Fork from a running sibling whose prompt is computed; else wait for one that is still at it.

    A sibling admitted in the step being planned is no source yet: its own last block may be a copy still to be made.
    """
    if not shared_len(sequence):
        return ALONE
    active = [sibling for sibling in siblings if sibling in running]
    for sibling in active:
        if sibling.num_computed_tokens >= sequence.prompt_len and sibling.sequence_id not in admitted:
            return Sharing(source=sibling)
    return Sharing(must_wait=bool(active))
