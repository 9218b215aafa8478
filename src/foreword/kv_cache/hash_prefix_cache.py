"""The index other engines use: a chained hash of each whole block, exact to the block.

A hit is believed only after its tokens and its place behind the block before it have been compared, so a collision
costs a miss and never a wrong answer: the block that came first keeps the hash.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from foreword.core.config import CacheConfig
from foreword.core.errors import InvariantError
from foreword.core.types import BlockId
from foreword.kv_cache.block_hash import extend_hashes
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.events import AllBlocksCleared, BlockRemoved, EventLog, stored_event
from foreword.kv_cache.explain import MissCause, MissReport
from foreword.kv_cache.prefix_cache import TOKEN_BYTES, BlockHash, Insertion, PrefixMatch, TokenPath
from foreword.kv_cache.retained import Domain, Retained
from foreword.kv_cache.retention import Retention
from foreword.kv_cache.stats import CacheStats
from foreword.kv_cache.token_runs import token_at

MAX_DEPARTED = 65_536
"""Hashes of evicted blocks remembered, so that a miss can be explained."""


class HashedBlock(Retained):
    """One stored whole block, behind its parent."""

    __slots__ = ("block", "depth", "hash", "num_children", "parent", "tokens")

    def __init__(
        self, parent: "HashedBlock | None", tokens: bytes, block_hash: BlockHash, block: int, domain: Domain
    ) -> None:
        super().__init__(domain)
        self.parent = parent
        self.tokens = tokens
        self.hash = block_hash
        self.block = block
        self.depth: int = 1 + (parent.depth if parent else 0)  # blocks up to and with this one
        self.num_children = 0

    @property
    def is_leaf(self) -> bool:
        """True when no stored block follows."""
        return self.num_children == 0

    @property
    def num_blocks(self) -> int:
        """Always one."""
        return 1

    @property
    def num_tokens(self) -> int:
        """Tokens up to its end."""
        return self.depth * len(self.tokens) // TOKEN_BYTES


class HashPrefixCache:
    """Finds the longest stored prefix of whole blocks."""

    def __init__(
        self,
        config: CacheConfig,
        pool: BlockPool,
        stats: CacheStats,
        events: EventLog | None = None,
        num_hash_bytes: int = 32,
    ) -> None:
        self._pool = pool
        self._block_size = config.block_size
        self._stats = stats
        self._events = events
        self._num_hash_bytes = num_hash_bytes  # tests shorten hashes to see collisions
        self._retention: Retention[HashedBlock] = Retention(config, self._is_candidate)
        self._entries: dict[bytes, HashedBlock] = {}
        self._departed: OrderedDict[bytes, MissCause] = OrderedDict()
        self.num_collisions = 0

    def match(self, path: TokenPath, limit: int) -> PrefixMatch:
        """Longest stored prefix of whole blocks. Cost: O(blocks), and hashing those not hashed before."""
        found = self._walk(path, limit)
        return PrefixMatch(len(found) * self._block_size, array("i", [entry.block for entry in found]))

    def touch(self, path: TokenPath, num_tokens: int, now: int) -> None:
        """Raise the worth of every block of the match. Cost: O(blocks)."""
        self._retention.advance(now)
        for entry in reversed(self._walk(path, num_tokens)):
            self._stats.reuse_gap.add(now - entry.used_at)
            self._retention.used(entry)

    def insert(self, path: TokenPath, num_tokens: int, blocks: "array[int]", now: int) -> Insertion:
        """Store the whole blocks of a prefix; a rest that fills no block stays unknown."""
        self._retention.advance(now)
        found = self._walk(path, num_tokens)
        replaced = tuple(
            (index, BlockId(entry.block)) for index, entry in enumerate(found) if entry.block != blocks[index]
        )
        known = len(found)
        end = self._store(path, known, num_tokens // self._block_size, blocks, found[-1] if found else None)
        if end > known and self._events is not None:
            self._events.append(stored_event(path, known, end, self._block_size))
        return Insertion(known * self._block_size, end * self._block_size, replaced)

    def released(self, path: TokenPath, num_tokens: int) -> None:
        """The last stored block of the path may be evictable now."""
        found = self._walk(path, num_tokens)
        if found:
            self._retention.offer(found[-1])

    def advance(self, now: int) -> None:
        """Lifetimes that have passed end."""
        self._retention.advance(now)

    def retain(self, path: TokenPath, num_tokens: int, priority: int, lifetime: int) -> int:
        """Keep stored blocks before others; returns how many leading tokens the budget allows."""
        kept = 0
        for entry in self._walk(path, num_tokens):
            if not self._retention.hint(entry, priority, lifetime):
                break
            kept += self._block_size
        return kept

    def share(self, quotas: Mapping[bytes, int]) -> None:
        """Let a tenant's findable blocks take so many at most, from the next one stored."""
        self._retention.share(quotas)

    def evict(self, count: int) -> int:
        """Withdraw up to `count` cached blocks, tails first. Cost: O(count log candidates), amortised."""
        for evicted in range(count):
            entry = self._retention.next_victim()
            if entry is None:
                return evicted
            self._evict(entry)
        return count

    def reset(self) -> None:
        """Forget every prefix. Cost: O(blocks stored)."""
        for entry in self._entries.values():
            self._pool.withdraw(entry.block)
        self._entries.clear()
        self._departed.clear()
        self._retention.clear()
        if self._events is not None:
            self._events.append(AllBlocksCleared())

    def explain(self, path: TokenPath, limit: int) -> MissReport:
        """Where the whole blocks end that are stored, and whether the next one was evicted. Changes nothing."""
        matched = len(self._walk(path, limit))
        depth = matched * self._block_size
        if limit - depth < self._block_size:
            return MissReport(depth, MissCause.NONE)
        key = extend_hashes(path, matched + 1, self._block_size)[matched][: self._num_hash_bytes]
        return MissReport(depth, self._departed.get(key, MissCause.NEVER_SEEN), token_at(path.packed, depth))

    def stored_hashes(self) -> Iterator[BlockHash]:
        """Hashes of all blocks stored, in no order. Cost: O(blocks)."""
        return (entry.hash for entry in self._entries.values())

    def check_invariants(self) -> None:
        """Check every entry, and that exactly the pool's findable blocks are stored.

        Raises:
            InvariantError: the index is unsound.
        """
        children = dict.fromkeys(self._entries, 0)
        for key, entry in self._entries.items():
            if entry.parent is not None:
                parent_key = entry.parent.hash[: self._num_hash_bytes]
                if self._entries.get(parent_key) is not entry.parent:
                    raise InvariantError(f"block {entry.block} is stored and its parent is not")
                children[parent_key] += 1
            if key != entry.hash[: self._num_hash_bytes]:
                raise InvariantError(f"block {entry.block} is stored under a hash not its own")
        if any(entry.num_children != children[key] for key, entry in self._entries.items()):
            raise InvariantError("a stored block counts its children wrong")
        self._retention.check_invariants(self._entries.values())
        if sorted(entry.block for entry in self._entries.values()) != list(self._pool.findable_blocks()):
            raise InvariantError("the index and the pool disagree on what is findable")

    def _walk(self, path: TokenPath, limit: int) -> list[HashedBlock]:
        """Entries of the longest stored prefix within the first `limit` tokens."""
        count = limit // self._block_size
        hashes = extend_hashes(path, count, self._block_size)  # at once: whoever is not found is stored soon
        size, width = self._block_size * TOKEN_BYTES, self._num_hash_bytes
        packed, entry_of = path.packed, self._entries.get
        found: list[HashedBlock] = []
        parent: HashedBlock | None = None
        for index in range(count):
            entry = entry_of(hashes[index][:width])
            if entry is None:
                break
            if entry.parent is not parent or entry.tokens != packed[index * size : (index + 1) * size]:
                self.num_collisions += 1
                break
            found.append(entry)
            parent = entry
        return found

    def _store(self, path: TokenPath, first: int, end: int, blocks: "array[int]", parent: HashedBlock | None) -> int:
        """Store blocks `[first, end)` behind `parent`, up to a collision; returns where that ended."""
        domain = parent.domain if parent else self._retention.domain(path.tenant)
        last = parent
        for index in range(first, end):
            key = path.hashes[index][: self._num_hash_bytes]  # made by the walk before
            if key in self._entries:
                end = index  # a collision: the block that came first keeps the hash
                break
            entry = HashedBlock(last, self._tokens(path, index), path.hashes[index], blocks[index], domain)
            self._pool.publish([entry.block])
            self._entries[key] = entry
            if last is not None:
                last.num_children += 1
            self._retention.stored(entry, 1)
            last = entry
        if last is not None and last is not parent:
            self._retention.offer(last)
            self._enforce_quota(domain)
        return end

    def _tokens(self, path: TokenPath, index: int) -> bytes:
        size = self._block_size * TOKEN_BYTES
        return bytes(path.packed[index * size : (index + 1) * size])

    def _is_candidate(self, entry: HashedBlock) -> bool:
        return entry.num_children == 0 and self._pool.ref_count(BlockId(entry.block)) == 0

    def _enforce_quota(self, domain: Domain) -> None:
        quota = domain.quota
        while quota is not None and domain.num_blocks > quota:
            entry = self._retention.next_victim(domain)
            if entry is None:
                return
            self._evict(entry)
            self._stats.evicted_blocks += 1

    def _evict(self, entry: HashedBlock) -> None:
        key = entry.hash[: self._num_hash_bytes]
        cause = MissCause.EXPIRED if entry.expires_at and not entry.priority else MissCause.EVICTED
        del self._entries[key]
        self._pool.withdraw(entry.block)
        self._retention.dropped(entry, 1)
        self._retention.removed(entry)
        self._stats.lifetime.add(self._retention.now - entry.stored_at)
        self._departed[key] = cause
        if len(self._departed) > MAX_DEPARTED:
            self._departed.popitem(last=False)
        if entry.parent is not None:
            entry.parent.num_children -= 1
            self._retention.offer(entry.parent)
        if self._events is not None:
            self._events.append(BlockRemoved((entry.hash,)))
