"""Records of tenants within a budget of bytes, kept for a time. Event loop only."""

import time
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from foreword.server.limits import Limits
from foreword.server.metrics import Metrics

ENTRY_OVERHEAD = 512
"""Bytes an entry takes beside its record: key, places in two maps, the object itself."""
MAX_ENTRIES = 65_536
SWEEP_INTERVAL_S = 60.0


class _Entry(Struct):
    record: bytes
    stored_at: float

    @property
    def num_bytes(self) -> int:
        return len(self.record) + ENTRY_OVERHEAD


class TenantStore:
    """Bytes by tenant and key.

    When room is needed, the tenant that takes most gives up what it has not used for longest: nobody can push out what
    is others' by storing much. What is too old is never found, and gone a minute later if anything is stored at all.
    """

    def __init__(self, max_bytes: int, ttl_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.ttl_s = ttl_s
        self.num_bytes = 0
        self.num_entries = 0
        self._clock = clock
        self._swept_at = clock()
        self._entries: dict[bytes, OrderedDict[bytes, _Entry]] = {}
        self._tenant_bytes: dict[bytes, int] = {}

    def find(self, tenant: bytes, key: bytes, max_age_s: float | None = None) -> bytes | None:
        """A tenant's record, if there is one and it is not too old; it is used with that."""
        own = self._entries.get(tenant)
        entry = None if own is None else own.get(key)
        if own is None or entry is None:
            return None
        age = self._clock() - entry.stored_at
        if age >= self.ttl_s:
            self.drop(tenant, key)
            return None
        if max_age_s is not None and age > max_age_s:
            return None
        own.move_to_end(key)
        return entry.record

    def store(self, tenant: bytes, key: bytes, record: bytes) -> bool:
        """Keep a record, in place of an older one; False when it alone takes more than the budget."""
        now = self._clock()
        entry = _Entry(record, now)
        if entry.num_bytes > self.max_bytes:
            return False
        if now - self._swept_at >= SWEEP_INTERVAL_S:
            self._sweep(now)
        self.drop(tenant, key)
        self._entries.setdefault(tenant, OrderedDict())[key] = entry
        self._count(tenant, entry.num_bytes, 1)
        while self.num_bytes > self.max_bytes or self.num_entries > MAX_ENTRIES:
            greediest = max(self._tenant_bytes, key=self._tenant_bytes.__getitem__)
            self.drop(greediest, next(iter(self._entries[greediest])))
        return True

    def drop(self, tenant: bytes, key: bytes) -> bool:
        """Forget a record; False when there is none."""
        own = self._entries.get(tenant)
        entry = None if own is None else own.pop(key, None)
        if own is None or entry is None:
            return False
        self._count(tenant, -entry.num_bytes, -1)
        if not own:
            del self._entries[tenant], self._tenant_bytes[tenant]
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._tenant_bytes.clear()
        self.num_bytes = self.num_entries = 0

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        for tenant, own in list(self._entries.items()):
            for key in [key for key, entry in own.items() if now - entry.stored_at >= self.ttl_s]:
                self.drop(tenant, key)

    def _count(self, tenant: bytes, num_bytes: int, num_entries: int) -> None:
        self.num_bytes += num_bytes
        self.num_entries += num_entries
        self._tenant_bytes[tenant] = self._tenant_bytes.get(tenant, 0) + num_bytes


def open_response_store(limits: Limits, metrics: Metrics) -> TenantStore:
    """The store of `/v1/responses`, watched by the metrics; one of no bytes keeps nothing."""
    store = TenantStore(limits.response_store_bytes, limits.response_store_ttl_s)
    metrics.watch_gauge("foreword:stored_responses", "Responses that can be continued", lambda: store.num_entries)
    metrics.watch_gauge("foreword:stored_responses_bytes", "Bytes they take", lambda: store.num_bytes)
    return store
