"""The index other engines use: a chained hash of each whole block, exact to the block.

Blocks stored one behind the other are one run, so that the index keeps arrays and no object a block:

    insert A B C, then A B D (a letter is a block):        match A B E: 2 blocks

        namespace ──h(A)── A B ─┬─h(ABC)── C               the run A B is compared as one piece of memory,
                                └─h(ABD)── D               h(ABE) is looked up, and is not there

A hash is looked up only where runs part; within a run the tokens alone say how far a match goes. Either way a hit is
believed only after its tokens have been compared, behind the very block before it, so a collision costs a miss and
never a wrong answer: the run that came first keeps the hash. Hashes are made when a lookup, an event or `stored_hashes`
asks for them, each once, and kept.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice

from foreword.core.config import CacheConfig
from foreword.core.errors import InvariantError
from foreword.core.types import BlockId
from foreword.kv_cache.block_hash import block_hash, extend_hashes, namespace_hash
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.events import AllBlocksCleared, BlockRemoved, EventLog, stored_event
from foreword.kv_cache.explain import MissCause, MissReport
from foreword.kv_cache.hashed_run import HashedRun
from foreword.kv_cache.prefix_cache import TOKEN_BYTES, BlockHash, Insertion, PrefixMatch, TokenPath
from foreword.kv_cache.retained import Domain
from foreword.kv_cache.retention import Retention
from foreword.kv_cache.stats import CacheStats
from foreword.kv_cache.token_runs import common_prefix, token_at

MAX_DEPARTED = 4096
"""Evicted runs remembered by their first block, so that a miss can be explained."""

MAX_COMPARED = 1024
"""Runs, newest first, among which `explain` looks for the nearest."""


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
        self._retention: Retention[HashedRun] = Retention(config, self._is_candidate)
        self._roots: dict[int | bytes, HashedRun] = {}
        self._last_name = 0
        self._departed: OrderedDict[tuple[int | bytes, bytes], MissCause] = OrderedDict()
        self.num_collisions = 0

    def match(self, path: TokenPath, limit: int) -> PrefixMatch:
        """Longest stored prefix of whole blocks. Cost: O(runs on the path) and a pass over the tokens."""
        runs, depth = self._walk(path, limit)
        blocks: array[int] = array("i")
        for run in runs:
            blocks.extend(run.blocks[: depth - run.start])
        return PrefixMatch(depth * self._block_size, blocks)

    def touch(self, path: TokenPath, num_tokens: int, now: int) -> None:
        """Raise the worth of every block of the match; a run that goes on behind it is split there."""
        self._retention.advance(now)
        for run in reversed(self._walk_split(path, num_tokens)):  # so that ancestors stay the more recently used
            self._stats.reuse_gap.add(now - run.used_at, run.num_blocks)
            self._retention.used(run)

    def insert(self, path: TokenPath, num_tokens: int, blocks: "array[int]", now: int) -> Insertion:
        """Store the whole blocks of a prefix; a rest that fills no block stays unknown. Cost: O(new blocks)."""
        self._retention.advance(now)
        runs, known = self._walk(path, num_tokens)
        replaced: list[tuple[int, BlockId]] = []
        for run in runs:
            theirs, own = run.blocks[: known - run.start], blocks[run.start : min(run.end, known)]
            if theirs != own:
                pairs = enumerate(zip(theirs, own, strict=True), run.start)
                replaced.extend((index, BlockId(stored)) for index, (stored, given) in pairs if stored != given)
        end = num_tokens // self._block_size
        if known < end and not self._extend(path, runs, known, blocks[known:end]):
            end = known  # a collision: the run that came first keeps the hash
        return Insertion(known * self._block_size, end * self._block_size, tuple(replaced))

    def released(self, path: TokenPath, num_tokens: int) -> None:
        """The last stored run of the path may be evictable now."""
        runs, _ = self._walk(path, num_tokens)
        if runs:
            self._retention.offer(runs[-1])

    def advance(self, now: int) -> None:
        """Lifetimes that have passed end."""
        self._retention.advance(now)

    def retain(self, path: TokenPath, num_tokens: int, priority: int, lifetime: int) -> int:
        """Keep stored blocks before others; returns how many leading tokens the budget allows."""
        kept = 0
        for run in self._walk_split(path, num_tokens):
            room = self._retention.room_for_hint(run, lifetime)
            if room <= 0:
                break
            part = run if room == run.num_blocks else self._split(run, room)
            self._retention.hint(part, priority, lifetime)
            kept = part.num_tokens
            if part is not run:
                break
        return kept

    def share(self, quotas: Mapping[bytes, int]) -> None:
        """Let a tenant's findable blocks take so many at most, from the next one stored."""
        self._retention.share(quotas)

    def evict(self, count: int) -> int:
        """Withdraw up to `count` cached blocks, tails first. Cost: O(count + log runs), amortised."""
        evicted = 0
        while evicted < count:
            run = self._retention.next_victim()
            if run is None:
                break
            evicted += self._evict_tail(run, count - evicted)
        return evicted

    def reset(self) -> None:
        """Forget every prefix. Cost: O(blocks stored)."""
        for run in self._runs():
            for block in run.blocks:
                self._pool.withdraw(block)
        self._roots.clear()
        self._departed.clear()
        self._retention.clear()
        if self._events is not None:
            self._events.append(AllBlocksCleared())

    def explain(self, path: TokenPath, limit: int) -> MissReport:
        """Where and why the first `limit` tokens part from what is stored, to the token. Changes nothing.

        The report may go on inside a block behind what can be hit, up to the token that differs.
        """
        runs, depth = self._walk(path, limit)
        position = depth * self._block_size
        if limit - position < self._block_size:
            return MissReport(position, MissCause.NONE)
        wanted = self._block_of(path, depth)
        run = runs[-1] if runs else self._roots.get(path.namespace)
        if run is not None and depth < run.end:
            return self._changed(path, depth, run.block_tokens(depth - run.start))
        cause = self._departed.get((path.namespace if run is None else run.name, wanted))
        if cause is not None:
            return MissReport(position, cause, token_at(wanted, 0))
        if run is not None and run.children is not None:
            newest = (child.block_tokens(0) for child in islice(reversed(run.children.values()), MAX_COMPARED))
            nearest = max(newest, key=lambda stored: common_prefix(stored, 0, wanted, 0, self._block_size))
            return self._changed(path, depth, nearest)
        cause = MissCause.NEVER_SEEN if depth else self._cause_elsewhere(path, wanted)
        return MissReport(position, cause, token_at(wanted, 0))

    def stored_hashes(self) -> Iterator[BlockHash]:
        """Hashes of all blocks stored, in no order. Cost: O(blocks)."""
        for run in self._runs():
            for offset in range(run.num_blocks):
                yield run.hash_at(offset)

    def check_invariants(self) -> None:
        """Check every run, and that exactly the pool's findable blocks are stored.

        Raises:
            InvariantError: the index is unsound.
        """
        stored: list[int] = []
        for run in self._runs():
            stored.extend(run.blocks)
            self._check_run(run)
        self._retention.check_invariants(self._runs())
        if sorted(stored) != list(self._pool.findable_blocks()):
            raise InvariantError("the index and the pool disagree on what is findable")

    # -- runs ------------------------------------------------------------------------------------------------------

    def _walk(self, path: TokenPath, limit: int) -> tuple[list[HashedRun], int]:
        """Runs that hold the longest stored prefix of the first `limit` tokens, and its length in blocks."""
        size = self._block_size
        count, depth = limit // size, 0
        runs: list[HashedRun] = []
        run = self._roots.get(path.namespace)
        while run is not None and run.children is not None and depth < count:
            tokens = self._block_of(path, depth)
            child = run.children.get(self._key(run, tokens))
            if child is None:
                break
            if not child.tokens.startswith(tokens):
                self.num_collisions += 1
                break
            runs.append(child)
            most = min(child.num_blocks, count - depth)
            depth += common_prefix(child.tokens, 0, path.packed, depth * size, most * size) // size
            run = child if depth == child.end else None
        return runs, depth

    def _walk_split(self, path: TokenPath, limit: int) -> list[HashedRun]:
        """The same runs; a last one that goes on behind the match is split there."""
        runs, depth = self._walk(path, limit)
        if runs and depth < runs[-1].end:
            runs[-1] = self._split(runs[-1], depth - runs[-1].start)
        return runs

    def _extend(self, path: TokenPath, runs: list[HashedRun], known: int, blocks: "array[int]") -> bool:
        """Store `blocks` behind the first `known` blocks of the path; False, and nothing stored, on a collision."""
        run = runs[-1] if runs else self._root(path)
        if known < run.end:
            run = self._split(run, known - run.start)
        if not self._grows_in_place(run):
            key = self._key(run, self._block_of(path, known))
            if run.children is not None and key in run.children:
                return False
            self._last_name += 1
            child = HashedRun(run, self._block_size, run.domain, self._last_name, key)
            run.add_child(child)
            run = child
        size, end = self._block_size * TOKEN_BYTES, known + len(blocks)
        self._pool.publish(blocks)
        run.tokens += path.packed[known * size : end * size]
        run.blocks.extend(blocks)
        if self._events is not None:
            run.take_hashes(extend_hashes(path, end, self._block_size)[known:end])
            self._events.append(stored_event(path, known, end, self._block_size))
        self._retention.stored(run, len(blocks))
        self._retention.offer(run)
        self._enforce_quota(run.domain)
        return True

    def _grows_in_place(self, run: HashedRun) -> bool:
        """A leaf nobody has hit yet is still its writer's own run."""
        return run.parent is not None and run.children is None and not run.num_uses and not run.priority

    def _split(self, run: HashedRun, count: int) -> HashedRun:
        self._last_name += 1
        upper = run.cut_front(count, self._last_name, self._num_hash_bytes)
        self._retention.split(upper, run)
        return upper

    def _root(self, path: TokenPath) -> HashedRun:
        root = self._roots.get(path.namespace)
        if root is None:
            domain = self._retention.domain(path.tenant)
            root = HashedRun(None, self._block_size, domain, path.namespace, b"")
            root.seed = namespace_hash(path.namespace, path.root)
            self._roots[path.namespace] = root
        return root

    def _runs(self) -> Iterator[HashedRun]:
        pending = list(self._roots.values())
        while pending:
            run = pending.pop()
            if run.parent is not None:
                yield run
            if run.children is not None:
                pending.extend(run.children.values())

    def _block_of(self, path: TokenPath, index: int) -> bytes:
        size = self._block_size * TOKEN_BYTES
        return bytes(path.packed[index * size : (index + 1) * size])

    def _key(self, run: HashedRun, tokens: bytes) -> bytes:
        """What a block behind `run` is found by."""
        return block_hash(run.last_hash(), tokens)[: self._num_hash_bytes]

    def _changed(self, path: TokenPath, depth: int, stored: bytearray) -> MissReport:
        """The request's block at `depth` and the nearest stored one differ; in which token?"""
        start = depth * self._block_size
        same = common_prefix(stored, 0, path.packed, start, self._block_size)
        wanted = token_at(path.packed, start + same)
        return MissReport(start + same, MissCause.CHANGED, wanted, token_at(stored, same))

    def _cause_elsewhere(self, path: TokenPath, wanted: bytes) -> MissCause:
        for root in self._roots.values():
            child = (root.children or {}).get(self._key(root, wanted))
            if root.name != path.namespace and child is not None and child.tokens.startswith(wanted):
                return MissCause.OTHER_NAMESPACE
        return MissCause.NEVER_SEEN

    def _check_run(self, run: HashedRun) -> None:
        parent = run.parent
        assert parent is not None
        assert parent.children is not None
        key = self._key(parent, bytes(run.block_tokens(0)))
        problems = {
            "has no blocks": not run.blocks,
            "hangs at the wrong place": parent.end != run.start,
            "is not its parent's child": parent.children.get(run.key) is not run,
            "is found by a hash not its own": run.key != key,
            "has lost tokens": len(run.tokens) != run.num_blocks * self._block_size * TOKEN_BYTES,
        }
        for problem, found in problems.items():
            if found:
                raise InvariantError(f"hashed run {run.name!r} at {run.start} {problem}")

    # -- eviction --------------------------------------------------------------------------------------------------

    def _is_candidate(self, run: HashedRun) -> bool:
        return run.children is None and len(run.blocks) > 0 and self._pool.ref_count(run.blocks[-1]) == 0

    def _enforce_quota(self, domain: Domain) -> None:
        quota = domain.quota
        while quota is not None and domain.num_blocks > quota:
            run = self._retention.next_victim(domain)
            if run is None:
                return
            self._stats.evicted_blocks += self._evict_tail(run, domain.num_blocks - quota)

    def _evict_tail(self, run: HashedRun, count: int) -> int:
        cause = MissCause.EXPIRED if run.expires_at and not run.priority else MissCause.EVICTED
        left = run.num_blocks - self._num_evictable(run, count)
        evicted = run.num_blocks - left
        if self._events is not None:
            removed = tuple(run.hash_at(offset) for offset in range(run.num_blocks - 1, left - 1, -1))
            self._events.append(BlockRemoved(removed))
        for block in reversed(run.blocks[left:]):
            self._pool.withdraw(block)
        self._stats.lifetime.add(self._retention.now - run.stored_at, evicted)
        first_gone = bytes(run.block_tokens(left))
        run.keep(left)
        self._retention.dropped(run, evicted)
        if left:
            self._remember(run.name, first_gone, cause)
            self._retention.offer(run)
        else:
            self._remove(run, first_gone, cause)
        return evicted

    def _num_evictable(self, run: HashedRun, count: int) -> int:
        """Blocks at the run's end that nobody holds, at most `count`."""
        number = 0
        for block in reversed(run.blocks[-count:]):
            if self._pool.ref_count(block):
                break
            number += 1
        return number

    def _remove(self, run: HashedRun, first_gone: bytes, cause: MissCause) -> None:
        """An empty run goes, and its parent may have become a leaf."""
        parent = run.parent
        assert parent is not None
        self._remember(parent.name, first_gone, cause)
        parent.remove_child(run)
        self._retention.removed(run)
        if parent.parent is not None:
            self._retention.offer(parent)
        elif parent.children is None:
            del self._roots[parent.name]

    def _remember(self, name: int | bytes, tokens: bytes, cause: MissCause) -> None:
        self._departed[name, tokens] = cause
        if len(self._departed) > MAX_DEPARTED:
            self._departed.popitem(last=False)
