"""What an index keeps: entries as retention sees them, and queues of those that may go."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator

from msgspec import Struct, field


class Retained(ABC):
    """What retention needs to know of an entry. Indexes extend it."""

    __slots__ = (
        "domain",
        "expires_at",
        "is_protected",
        "last_used",
        "lifetime",
        "num_uses",
        "priority",
        "stamp",
        "stored_at",
        "used_at",
        "value",
    )

    def __init__(self, domain: "Domain") -> None:
        self.domain = domain
        self.last_used = 0  # serial
        self.stored_at = 0  # logical time
        self.used_at = 0  # logical time of the last use
        self.num_uses = 0
        self.is_protected = False
        self.value = 0.0
        self.priority = 0  # 0 unless hinted
        self.lifetime = 0  # of the hint, from each use
        self.expires_at = 0  # logical time at which the hint ends
        self.stamp = 0  # identifies the entry's newest place in the queue; 0 = in no queue

    @property
    @abstractmethod
    def is_leaf(self) -> bool:
        """True when nothing stored continues the entry."""

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Blocks that go with the entry."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens up to the entry's end: what finding it saves."""


Place = tuple[int, float, int, Retained]
"""Priority, key, stamp, entry: stamps differ, so entries are never compared."""


class VictimQueue:
    """A heap of places. Most are current; stale ones are skipped, and swept out when they are the greater part."""

    def __init__(self) -> None:
        self._heap: list[Place] = []
        self._live_at_sweep = 0

    def push(self, place: Place) -> None:
        """Add a place."""
        heapq.heappush(self._heap, place)
        if len(self._heap) > 64 and len(self._heap) > 2 * self._live_at_sweep:
            self.sweep()

    def pop(self) -> Place | None:
        """Take the first place out; None when there is none."""
        return heapq.heappop(self._heap) if self._heap else None

    def places(self) -> Iterator[Place]:
        """All places, current and stale, in no order."""
        return iter(self._heap)

    def sweep(self) -> None:
        """Drop stale places. Cost: O(places), after at least as many pushes."""
        self._heap = [place for place in self._heap if place[2] == place[3].stamp]
        heapq.heapify(self._heap)
        self._live_at_sweep = len(self._heap)


class Domain(Struct, eq=False):
    """One tenant's part of the index."""

    tenant: bytes
    num_blocks: int = 0
    quota: int | None = None  # most blocks it may have; None: any number
    queue: VictimQueue = field(default_factory=VictimQueue)
