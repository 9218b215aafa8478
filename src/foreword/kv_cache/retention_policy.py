"""Orders among cached entries: which goes first when room is needed."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from foreword.core.config import RetentionKind
from foreword.kv_cache.retained import Retained


class RetentionPolicy(Protocol):
    """An order among entries. `key`: smallest goes first; it may grow with uses, and falls only as `used` tells.

    An entry that was used grows no more: what continues it is another entry.
    """

    def stored(self, entry: Retained, num_blocks: int) -> None:
        """The entry has grown by `num_blocks` blocks."""
        ...

    def split(self, upper: Retained, lower: Retained) -> None:
        """`upper` was cut off the front of `lower` and has its past."""
        ...

    def used(self, entry: Retained) -> list[Retained]:
        """The entry was hit; returns entries whose key has fallen because of that."""
        ...

    def dropped(self, entry: Retained, num_blocks: int) -> None:
        """The entry has lost `num_blocks` blocks."""
        ...

    def removed(self, entry: Retained) -> None:
        """The entry, by now without blocks, is gone."""
        ...

    def key(self, entry: Retained) -> float:
        """Worth among entries of equal priority."""
        ...


class LeastRecentlyUsed:
    """The entry whose last use lies farthest back goes first."""

    def stored(self, entry: Retained, num_blocks: int) -> None:
        """Recency needs no account of blocks."""

    def split(self, upper: Retained, lower: Retained) -> None:
        """Both parts keep their last use."""

    def used(self, entry: Retained) -> list[Retained]:
        """The key has grown with `last_used`."""
        return []

    def dropped(self, entry: Retained, num_blocks: int) -> None:
        """Recency needs no account of blocks."""

    def removed(self, entry: Retained) -> None:
        """Nothing to forget."""

    def key(self, entry: Retained) -> float:
        """Serial of the last use."""
        return entry.last_used


class LeastFrequentlyUsed(LeastRecentlyUsed):
    """The entry hit least often goes first; among equals, the one not used for longest."""

    def key(self, entry: Retained) -> float:
        """Uses before recency; a serial needs fewer than 48 bits."""
        return entry.num_uses << 48 | entry.last_used


class CostAware(LeastRecentlyUsed):
    """The entry that is cheapest to compute again, for the memory it takes and how often it was hit, goes first.

    Bytes a block are equal, so worth is the time one block takes to compute: linear layers, the same everywhere, and
    attention, growing with depth. Greedy-dual ageing: worth is counted from the worth of the last entry to go, so
    that what was dear once does not stay for ever.
    """

    def __init__(self, attention_share_per_1k: float = 0.25) -> None:
        self._attention = attention_share_per_1k / 1000
        self._floor = 0.0

    def stored(self, entry: Retained, num_blocks: int) -> None:
        """A new block is worth one computation from now."""
        self._value(entry)

    def used(self, entry: Retained) -> list[Retained]:
        """Each use is worth another computation from now."""
        self._value(entry)
        return []

    def split(self, upper: Retained, lower: Retained) -> None:
        """Both parts keep their worth."""
        upper.value = lower.value

    def dropped(self, entry: Retained, num_blocks: int) -> None:
        """What goes sets the floor for what comes."""
        self._floor = max(self._floor, entry.value)

    def key(self, entry: Retained) -> float:
        """Worth when last stored or used."""
        return entry.value

    def _value(self, entry: Retained) -> None:
        cost = 1.0 + self._attention * entry.num_tokens
        entry.value = max(entry.value, self._floor + (1 + entry.num_uses) * cost)


class SegmentedLRU(LeastRecentlyUsed):
    """Least recently used, in two segments: what was hit is protected from what was only stored.

    A scan that nobody asks for again passes through the first segment and cannot push out what was used twice. The
    protected segment is bounded; what falls out of it starts again as the newest of the first.
    """

    def __init__(self, capacity: int, protected_share: float = 0.2) -> None:
        self._limit = int(capacity * protected_share)
        self._protected: OrderedDict[Retained, None] = OrderedDict()
        self._num_protected_blocks = 0

    def split(self, upper: Retained, lower: Retained) -> None:
        """Both parts stay in the segment they were in."""
        upper.is_protected = lower.is_protected
        if upper.is_protected:
            self._protected[upper] = None

    def used(self, entry: Retained) -> list[Retained]:
        """Promote the entry; demote what has been in the protected segment unused for longest."""
        if not entry.is_protected:
            entry.is_protected = True
            self._num_protected_blocks += entry.num_blocks
        self._protected[entry] = None
        self._protected.move_to_end(entry)
        demoted = []
        while self._num_protected_blocks > self._limit and len(self._protected) > 1:
            oldest, _ = self._protected.popitem(last=False)
            oldest.is_protected = False
            oldest.last_used = entry.last_used
            self._num_protected_blocks -= oldest.num_blocks
            demoted.append(oldest)
        return demoted

    def dropped(self, entry: Retained, num_blocks: int) -> None:
        """Room in the segment comes back."""
        if entry.is_protected:
            self._num_protected_blocks -= num_blocks

    def removed(self, entry: Retained) -> None:
        """Its place in the segment is free."""
        self._protected.pop(entry, None)

    def key(self, entry: Retained) -> float:
        """The protected segment lies above all of the first."""
        return entry.is_protected << 48 | entry.last_used


POLICIES: dict[RetentionKind, Callable[[int], RetentionPolicy]] = {
    "slru": SegmentedLRU,
    "lru": lambda capacity: LeastRecentlyUsed(),
    "lfu": lambda capacity: LeastFrequentlyUsed(),
    "cost": lambda capacity: CostAware(),
}
