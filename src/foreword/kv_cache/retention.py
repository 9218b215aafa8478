"""Which cached prefix goes first. Policies give an order; hints and quotas bend it within their budgets.

An entry is whatever an index evicts as one: a run of blocks in the radix tree, one block in the hash index. Only
entries without children are candidates, so descendants go before ancestors whatever the policy says.

Time is logical: a serial number, raised at each use, orders uses; `now`, in whatever unit the caller counts, is used
for expiry alone. A hint lasts for its lifetime, counted anew from each use.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from foreword.core.config import CacheConfig
from foreword.core.errors import InvariantError
from foreword.kv_cache.retained import Domain, Retained, VictimQueue
from foreword.kv_cache.retention_policy import POLICIES

EntryT = TypeVar("EntryT", bound=Retained)


class Retention(Generic[EntryT]):
    """The queue of candidates, in the policy's order, with priorities, expiry and quotas.

    Queues are heaps with stale places left in: a place counts only if its stamp is the entry's newest, and a key that
    has grown since is put back where it belongs. Cost of all: O(log candidates), amortised.
    """

    def __init__(self, config: CacheConfig, is_candidate: Callable[[EntryT], bool]) -> None:
        self._config = config
        self._policy = POLICIES[config.retention](config.num_blocks)
        self.hint_budget = int(config.hint_share * config.num_blocks)  # most blocks under a hint
        self.quota = int(config.tenant_share * config.num_blocks) if config.tenant_share < 1 else None
        self.now = 0
        self.num_hinted_blocks = 0
        self._is_candidate = is_candidate
        self._serial = 0
        self._stamp = 0
        self._queue = VictimQueue()
        self._quotas: dict[bytes, int] = {}
        self._domains: dict[bytes, Domain] = {}
        self._expiries: list[tuple[int, int, Retained]] = []
        self._parked: dict[Retained, None] = {}

    def domain(self, tenant: bytes) -> Domain:
        """The account of one tenant."""
        return self._domains.setdefault(tenant, Domain(tenant, quota=self._quotas.get(tenant, self.quota)))

    def share(self, quotas: Mapping[bytes, int]) -> None:
        """Let other quotas than the common one hold, by tenant. They are kept as something new is stored."""
        self._quotas = dict(quotas)
        fresh = set()
        for domain in self._domains.values():
            if domain.quota is None and domain.tenant in quotas:
                fresh.add(domain.tenant)
            domain.quota = self._quotas.get(domain.tenant, self.quota)
        for place in self._queue.places():
            domain = place[3].domain
            if domain.tenant in fresh:
                domain.queue.push(place)

    def stored(self, entry: EntryT, num_blocks: int) -> None:
        """Blocks were added at the entry's end."""
        self._serial += 1
        entry.last_used = self._serial
        entry.used_at = self.now
        if num_blocks == entry.num_blocks:
            entry.stored_at = self.now
        entry.domain.num_blocks += num_blocks
        self.num_hinted_blocks += num_blocks if entry.priority else 0
        self._policy.stored(entry, num_blocks)

    def split(self, upper: EntryT, lower: EntryT) -> None:
        """`upper`, new, was cut off the front of `lower`."""
        upper.last_used, upper.num_uses = lower.last_used, lower.num_uses
        upper.stored_at, upper.used_at = lower.stored_at, lower.used_at
        self._policy.split(upper, lower)
        if lower.priority:
            upper.priority, upper.lifetime, upper.expires_at = lower.priority, lower.lifetime, lower.expires_at
            self._watch_expiry(upper)

    def used(self, entry: EntryT) -> None:
        """The entry was hit."""
        self._serial += 1
        entry.last_used = self._serial
        entry.used_at = self.now
        entry.num_uses += 1
        if entry.priority:
            entry.expires_at = max(entry.expires_at, self.now + entry.lifetime)
        for fallen in self._policy.used(entry):
            if fallen.stamp:
                self._push(fallen)

    def dropped(self, entry: EntryT, num_blocks: int) -> None:
        """Blocks were withdrawn from the entry's end."""
        entry.domain.num_blocks -= num_blocks
        self.num_hinted_blocks -= num_blocks if entry.priority else 0
        self._policy.dropped(entry, num_blocks)

    def removed(self, entry: EntryT) -> None:
        """The entry, by now without blocks, is gone."""
        entry.stamp = entry.priority = 0
        self._parked.pop(entry, None)
        self._policy.removed(entry)
        if not entry.domain.num_blocks:
            self._domains.pop(entry.domain.tenant, None)

    def advance(self, now: int) -> None:
        """It is `now`: hints whose time has passed end."""
        self.now = max(self.now, now)
        self._expire()

    def room_for_hint(self, entry: EntryT, lifetime: int) -> int:
        """Blocks of the entry that `hint` would keep: as many as the budget allows, none for no lifetime."""
        if lifetime <= 0:
            return 0
        return entry.num_blocks if entry.priority else min(entry.num_blocks, self.hint_budget - self.num_hinted_blocks)

    def hint(self, entry: EntryT, priority: int, lifetime: int) -> bool:
        """Keep the entry before those of lower priority, for `lifetime` from now and from each use.

        False when the budget does not allow.
        """
        if self.room_for_hint(entry, lifetime) < entry.num_blocks:
            return False
        is_new = not entry.priority
        self.num_hinted_blocks += entry.num_blocks if is_new else 0
        entry.priority = max(entry.priority, priority)
        entry.lifetime = max(entry.lifetime, lifetime)
        entry.expires_at = max(entry.expires_at, self.now + lifetime)
        if is_new:
            self._watch_expiry(entry)
        return True

    def offer(self, entry: EntryT) -> None:
        """The entry may have become a candidate."""
        if entry.stamp:
            return  # it has a place already; its key is read again there
        if self._is_candidate(entry):
            self._push(entry)
        elif entry.is_leaf:
            self._parked[entry] = None

    def next_victim(self, domain: Domain | None = None) -> EntryT | None:
        """Take the first candidate, of one tenant or of all, out of the queue; None when there is none."""
        queue = self._queue if domain is None else domain.queue
        victim = self._pop(queue)
        if victim is None and self._parked:  # whoever held these may have let go since
            parked, self._parked = self._parked, {}
            for entry in parked:
                self._push(entry)
            victim = self._pop(queue)
        return victim

    def check_invariants(self, entries: Iterable[EntryT]) -> None:
        """Recount the blocks under a hint.

        Raises:
            InvariantError: they are counted wrong, or beyond the budget.
        """
        counted = sum(entry.num_blocks for entry in entries if entry.priority)
        if counted != self.num_hinted_blocks or counted > self.hint_budget:
            raise InvariantError(f"{counted} blocks under a hint, counted {self.num_hinted_blocks}")

    def clear(self) -> None:
        """Forget every entry, in the policy's own accounts too."""
        self._policy = POLICIES[self._config.retention](self._config.num_blocks)
        self._queue = VictimQueue()
        self._domains.clear()
        self._expiries.clear()
        self._parked.clear()
        self.num_hinted_blocks = 0

    def _push(self, entry: Retained) -> None:
        self._stamp += 1
        entry.stamp = self._stamp
        self._parked.pop(entry, None)
        place = (entry.priority, self._policy.key(entry), entry.stamp, entry)
        self._queue.push(place)
        if entry.domain.quota is not None:
            entry.domain.queue.push(place)

    def _pop(self, queue: VictimQueue) -> EntryT | None:
        while (place := queue.pop()) is not None:
            priority, key, stamp, entry = place
            if stamp != entry.stamp:
                continue
            entry.stamp = 0
            if (priority, key) < (entry.priority, self._policy.key(entry)):
                self._push(entry)
            elif self._is_candidate(entry):  # type: ignore[arg-type]  # only EntryT entries come in
                return entry  # type: ignore[return-value]
            elif entry.is_leaf:
                self._parked[entry] = None  # held: whoever holds it may let go unseen, as copies do
        return None

    def _watch_expiry(self, entry: Retained) -> None:
        self._stamp += 1
        heapq.heappush(self._expiries, (entry.expires_at, self._stamp, entry))

    def _expire(self) -> None:
        while self._expiries and self._expiries[0][0] <= self.now:
            _, _, entry = heapq.heappop(self._expiries)
            if not entry.priority:
                continue  # gone
            if entry.expires_at > self.now:  # used since
                self._watch_expiry(entry)
                continue
            self.num_hinted_blocks -= entry.num_blocks
            entry.priority = entry.lifetime = 0
            if entry.stamp:
                self._push(entry)
