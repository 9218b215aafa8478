"""Blocks that are spoken for: what guaranteed sequences will need to their end, and what others need soon."""

from foreword.core.sequence import Sequence
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.policy import MAX_PREEMPTIONS
from foreword.scheduler.queues import SequenceQueue
from foreword.scheduler.stopping import final_len


class Reservations:
    """Counts blocks to come. Knows which running sequences are guaranteed to reach their end."""

    def __init__(self, manager: KVCacheManager, max_model_len: int) -> None:
        self._manager = manager
        self._max_model_len = max_model_len
        self._guaranteed = SequenceQueue()

    def start(self, sequence: Sequence) -> None:
        """The sequence runs now; one preempted as often as allowed is guaranteed from here on."""
        if sequence.num_preemptions >= MAX_PREEMPTIONS:
            self._guaranteed.append(sequence)

    def stop(self, sequence: Sequence) -> None:
        """The sequence runs no more."""
        self._guaranteed.discard(sequence)

    def most_computed(self, sequence: Sequence) -> int:
        """Most tokens the sequence can come to compute: its last one is drawn and never computed."""
        return final_len(sequence, self._max_model_len) - 1

    def reserved(self, apart_from: Sequence) -> int:
        """Blocks that guaranteed sequences have yet to take and nobody else may."""
        return sum(
            self._to_come(sequence, self.most_computed(sequence))
            for sequence in self._guaranteed
            if sequence is not apart_from
        )

    def growth(self, sequence: Sequence) -> int:
        """Blocks a running sequence needs soon: for the rest of what it knows, and for a block of what it draws."""
        if sequence in self._guaranteed:
            return 0  # reserved already
        soon = sequence.num_tokens + self._manager.config.block_size
        return self._to_come(sequence, min(self.most_computed(sequence), soon))

    def _to_come(self, sequence: Sequence, num_tokens: int) -> int:
        return self._manager.block_table(sequence).missing_blocks(num_tokens)
