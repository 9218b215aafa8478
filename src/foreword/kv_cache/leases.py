"""What live sequences asked to keep.

A lease begins when the prefix it covers is stored, or found. From then on it lives in the index, renewed by every hit,
until its time has passed.
"""

from foreword.core.sequence import Lease
from foreword.core.types import SequenceId
from foreword.kv_cache.prefix_cache import PrefixCache, TokenPath


class Leases:
    """Leases that have not begun yet, by sequence."""

    def __init__(self, prefix_cache: PrefixCache) -> None:
        self._prefix_cache = prefix_cache
        self._asked: dict[SequenceId, tuple[Lease, ...]] = {}

    def ask(self, sequence_id: SequenceId, leases: tuple[Lease, ...]) -> None:
        """Note what a sequence wants kept."""
        if leases:
            self._asked[sequence_id] = leases

    def begin(self, sequence_id: SequenceId, path: TokenPath, num_findable: int) -> None:
        """The first `num_findable` tokens of the sequence are stored: leases within them begin, once."""
        asked = self._asked.get(sequence_id, ())
        for lease in asked:
            if lease.num_tokens <= num_findable:
                self._prefix_cache.retain(path, lease.num_tokens, lease.priority, lease.lifetime)
        if asked:
            self._asked[sequence_id] = tuple(lease for lease in asked if lease.num_tokens > num_findable)

    def forget(self, sequence_id: SequenceId) -> None:
        """The sequence is over; what has begun goes on without it."""
        self._asked.pop(sequence_id, None)
