"""Who waits and who runs. Both queues keep order and give up any member in O(1)."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from foreword.core.sequence import Sequence
from foreword.core.types import SequenceId


def nearly_caught_up_first(running: Iterable[Sequence]) -> list[Sequence]:
    """Those with one token to compute before those with more; otherwise the order they have."""
    return sorted(running, key=lambda sequence: sequence.num_tokens - sequence.num_computed_tokens > 1)


class SequenceQueue:
    """Sequences in order of arrival; a preempted one returns to the front."""

    def __init__(self) -> None:
        self._members: OrderedDict[SequenceId, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.sequence_id in self._members

    def __iter__(self) -> Iterator[Sequence]:
        """A snapshot in order: the queue may change while it is read."""
        return iter(tuple(self._members.values()))

    def append(self, sequence: Sequence) -> None:
        """Put a sequence last."""
        self._members[sequence.sequence_id] = sequence

    def push_front(self, sequence: Sequence) -> None:
        """Put a sequence first."""
        self._members[sequence.sequence_id] = sequence
        self._members.move_to_end(sequence.sequence_id, last=False)

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence out, if it is in."""
        self._members.pop(sequence.sequence_id, None)

    def reorder(self, order: Iterable[Sequence]) -> None:
        """Put the members, all of which `order` must hold, in a new order. Cost: O(members)."""
        self._members = OrderedDict((sequence.sequence_id, sequence) for sequence in order)
