"""What a provider would have stored: prefixes by digest, each until its time has passed; no K and V is behind it."""

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

MAX_ENTRIES = 65_536


class _Entry(Struct):
    lifetime_s: float
    expires_at: float
    last_end: float  # whatever happens, not beyond this


class Write(Struct, frozen=True, kw_only=True):
    """A prefix that becomes readable when the answer has begun."""

    digest: bytes
    lifetime_s: float
    most_s: float = float("inf")  # from now, however often it is used


class Ledger:
    """Entries in order of use, a bounded number of them. Any thread may call."""

    def __init__(self, clock: Callable[[], float], max_entries: int = MAX_ENTRIES) -> None:
        self.clock = clock
        self._max_entries = max_entries
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, digest: bytes, now: float) -> bool:
        """True while a prefix may be read."""
        with self._lock:
            entry = self._entries.get(digest)
            return entry is not None and now < entry.expires_at

    def renew(self, digests: Iterable[bytes], now: float) -> None:
        """Prefixes are used: their time counts from now. What has expired stays so."""
        with self._lock:
            for digest in digests:
                entry = self._entries.get(digest)
                if entry is not None and now < entry.expires_at:
                    entry.expires_at = min(entry.last_end, now + entry.lifetime_s)
                    self._entries.move_to_end(digest)

    def store(self, writes: Iterable[Write], now: float) -> None:
        """Prefixes become readable; their time counts from `now`, when their request began."""
        with self._lock:
            for write in writes:
                end = now + write.most_s
                self._entries[write.digest] = _Entry(write.lifetime_s, min(end, now + write.lifetime_s), end)
                self._entries.move_to_end(write.digest)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)


class PrefixDigests:
    """Digests of a prompt's prefixes. `domain` keeps apart what shares nothing. Cost: O(tokens) the first time each."""

    def __init__(self, domain: Sequence[bytes], token_ids: Sequence[int]) -> None:
        self._packed = array("i", token_ids).tobytes()
        self._start = hashlib.sha256()
        for part in domain:
            self._start.update(len(part).to_bytes(8, "little") + part)
        self._known: dict[int, bytes] = {}

    def at(self, num_tokens: int) -> bytes:
        """Digest of the first `num_tokens` tokens."""
        found = self._known.get(num_tokens)
        if found is None:
            digest = self._start.copy()
            digest.update(self._packed[: 4 * num_tokens])
            found = self._known[num_tokens] = digest.digest()
        return found
