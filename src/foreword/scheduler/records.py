"""What is told about a sequence after a step, and what must be true of it between steps."""

from collections.abc import Collection

from foreword.core.errors import InvariantError
from foreword.core.outputs import SampledToken, SequenceStep
from foreword.core.sequence import Sequence, SequenceStatus
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.queues import SequenceQueue


def step_of(sequence: Sequence, *tokens: SampledToken) -> SequenceStep:
    """The record of a step that gave `tokens` to a sequence, or ended it."""
    return SequenceStep(
        request_id=sequence.request_id,
        sequence_id=sequence.sequence_id,
        index=sequence.index,
        new_tokens=tokens,
        finish_reason=sequence.finish_reason,
        usage=sequence.usage,
        stop_token_id=sequence.stop_token_id,
    )


def check_sequences(
    sequences: Collection[Sequence], queues: tuple[SequenceQueue, ...], manager: KVCacheManager
) -> None:
    """Check that every live sequence is in one of the queues, the first of which runs, and sound.

    Raises:
        InvariantError: they contradict each other.
    """
    if sum(len(queue) for queue in queues) != len(sequences):
        raise InvariantError("a sequence is in no queue, or in two")
    for sequence in sequences:
        check_sequence(sequence, manager, is_running=sequence in queues[0])


def check_sequence(sequence: Sequence, manager: KVCacheManager, *, is_running: bool) -> None:
    """Check status, computed tokens and blocks of one live sequence against each other.

    Raises:
        InvariantError: they contradict each other.
    """
    wanted = SequenceStatus.RUNNING if is_running else SequenceStatus.WAITING
    num_slots = manager.block_table(sequence).num_slots if manager.holds(sequence) else 0
    holds_rightly = is_running or manager.holds(sequence) == (sequence.num_computed_tokens > 0)
    if sequence.status is not wanted or sequence.num_computed_tokens > num_slots or not holds_rightly:
        raise InvariantError(
            f"sequence {sequence.sequence_id} is {sequence.status}, should be {wanted}: "
            f"{sequence.num_computed_tokens} tokens computed, {num_slots} slots"
        )
