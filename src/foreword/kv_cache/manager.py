"""The only door to the KV cache's bookkeeping: which sequence holds which blocks, and what can be found again.

Life of a sequence's blocks:

    match ──▶ allocate_slots ──(forward pass)──▶ commit ──▶ allocate_slots ──▶ … ──▶ free
                   ▲                               │
                   └──────────── fork ─────────────┘

and of one sequence's positions, as half-open ranges:

    0 ......... committed ......... computed ......... computed + scheduled ......... num_slots
    | findable, immutable | private, written | private, written in this step | reserved, unused |

Writing happens only to blocks with one holder that no index refers to. Whatever else a sequence would write to is
first replaced by a copy: the replacement is decided here, told as `BlockCopy`, and done by the runner before the
step's forward pass. Source blocks of copies stay held until `end_step`, so nothing decided later in the same step can
reuse them.
"""

import itertools

from msgspec import Struct

from foreword.core.config import CacheConfig
from foreword.core.errors import InvariantError
from foreword.core.outputs import BlockCopy
from foreword.core.sequence import Lease, Sequence
from foreword.core.types import BlockId, SequenceId, TokenId
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.block_table import BlockTable
from foreword.kv_cache.events import EventLog
from foreword.kv_cache.explain import MissReport
from foreword.kv_cache.hash_prefix_cache import HashPrefixCache
from foreword.kv_cache.leases import Leases
from foreword.kv_cache.prefix_cache import NoPrefixCache, PrefixCache, PrefixMatch, TokenPath
from foreword.kv_cache.published import Published
from foreword.kv_cache.radix_prefix_cache import RadixPrefixCache
from foreword.kv_cache.stats import CacheStats
from foreword.kv_cache.token_runs import common_prefix

NO_MATCH = PrefixMatch()


def make_prefix_cache(
    config: CacheConfig, pool: BlockPool, stats: CacheStats, events: EventLog | None = None
) -> PrefixCache:
    """The index that the settings name."""
    if config.prefix_cache == "radix":
        return RadixPrefixCache(config, pool, stats, events)
    if config.prefix_cache == "hash":
        return HashPrefixCache(config, pool, stats, events)
    return NoPrefixCache()


class Allocation(Struct, frozen=True):
    """Blocks newly given to a sequence, and copies to make before it writes."""

    fresh_blocks: tuple[BlockId, ...] = ()
    copies: tuple[BlockCopy, ...] = ()


class _Holding(Struct, eq=False):
    """One sequence's blocks; the first `num_committed` tokens are findable."""

    table: BlockTable
    path: TokenPath
    num_committed: int = 0


class KVCacheManager:
    """Gives blocks to sequences and takes them back.

    A sequence is known here from `register` until `forget`, and holds blocks from `allocate_slots` or `fork`
    until `free`. Methods read `sequence_id`, `token_ids`, `prompt_len` and `num_computed_tokens` of a sequence and
    change none of them.
    """

    def __init__(self, config: CacheConfig, events: EventLog | None = None, *, root: bytes = b"") -> None:
        """Args: `root`: the identity that block hashes start from, needed where they leave the process."""
        self.config, self._root = config, root
        self.pool = BlockPool(config.num_blocks)
        self.stats = CacheStats()
        self.prefix_cache = make_prefix_cache(config, self.pool, self.stats, events)
        self.published = Published(self.pool, config.block_size)
        self._leases = Leases(self.prefix_cache)
        self._paths: dict[SequenceId, TokenPath] = {}
        self._holdings: dict[SequenceId, _Holding] = {}
        self._copy_sources: list[BlockId] = []
        self._pins: dict[TokenPath, list[int]] = {}
        self._now = 0

    def begin_step(self, now: int) -> None:
        """Start planning a step at logical time `now`; copies of a plan that came to nothing are forgotten."""
        self._now = max(self._now, now)
        self.prefix_cache.advance(self._now)
        self.end_step()

    def end_step(self) -> None:
        """The step is over: its copies have run, or will never, so what they read from is held for them no more."""
        self.pool.release(self._copy_sources)
        self._copy_sources.clear()

    def register(
        self, sequence: Sequence, namespace: bytes, tenant: bytes = b"", leases: tuple[Lease, ...] = ()
    ) -> None:
        """Make a sequence known; it shares prefixes within `namespace` only. Cost: O(its tokens), once.

        What it stores counts towards the share of `tenant`, which may own several namespaces. `leases` begin when
        what they cover is stored or found.
        """
        self._leases.ask(sequence.sequence_id, leases)
        path = TokenPath(namespace, tenant, root=self._root)
        path.extend(sequence.token_ids)
        self.published.attach(path, sequence.prompt_len - 1)
        self._paths[sequence.sequence_id] = path

    def forget(self, sequence: Sequence) -> None:
        """Take back all a sequence holds and forget it."""
        self.free(sequence)
        self._leases.forget(sequence.sequence_id)
        del self._paths[sequence.sequence_id]

    def match(self, sequence: Sequence) -> PrefixMatch:
        """Longest stored prefix of the sequence's known tokens, short of the last one. Changes nothing.

        The last known token is always computed: K and V alone do not give the logits that come after it.
        """
        return self.prefix_cache.match(self._path(sequence), sequence.num_tokens - 1)

    def num_tokens_that_fit(self, sequence: Sequence, keep: int) -> int:
        """Tokens of a sequence that holds blocks which could be computed next if `keep` blocks must stay available."""
        holding = self._holdings[sequence.sequence_id]
        start = sequence.num_computed_tokens
        num_shared = len(self._shared_indices(holding.table, start, 1))
        room = self.pool.num_available - keep - num_shared
        if room < 0:
            return 0 if num_shared else max(0, holding.table.num_slots - start)
        return holding.table.num_slots + room * self.config.block_size - start

    def allocate_slots(
        self, sequence: Sequence, num_tokens: int, match: PrefixMatch = NO_MATCH, keep: int = 0
    ) -> Allocation | None:
        """Give slots to the next `num_tokens` tokens of a sequence.

        A sequence that holds nothing yet starts behind `match`, whose blocks it comes to share; the caller sets
        `num_computed_tokens` to `match.num_tokens` on success. Others continue at `num_computed_tokens`.

        Returns:
            What was allocated; or None when that would leave fewer than `keep` blocks available. Then nothing has
            changed, save that cached blocks may have been evicted.
        Cost: O(blocks of the match + blocks allocated).
        """
        holding = self._holdings.get(sequence.sequence_id)
        if holding is None:
            return self._first_slots(sequence, num_tokens, match, keep)
        return self._grow(holding, sequence.num_computed_tokens, num_tokens, keep)

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        """Let `child` share the blocks that hold the first `num_tokens` computed tokens of `parent`.

        Takes no free block: whichever of them writes first into a shared block copies it then. The caller sets
        the child's `num_computed_tokens` to `num_tokens`.

        Raises:
            InvariantError: the child holds blocks already, or the parent has not computed as much; nothing changed.
        """
        source = self._holdings.get(parent.sequence_id)
        if source is None or parent.num_computed_tokens < num_tokens or child.sequence_id in self._holdings:
            raise InvariantError(f"sequence {child.sequence_id} cannot fork from sequence {parent.sequence_id}")
        table = BlockTable(self.config.block_size, source.table.ids[: self.config.blocks_for(num_tokens)])
        self.pool.acquire(table.ids)
        block_size = self.config.block_size
        committed = min(source.num_committed, num_tokens // block_size * block_size)
        self._holdings[child.sequence_id] = _Holding(table, self._path(child), committed)

    def commit(self, sequence: Sequence) -> int:
        """Tell that K and V of `num_computed_tokens` tokens are written: whole blocks of them become findable.

        A block whose content was findable already is folded into the copy that was: the table then names that one.

        Returns:
            Prompt tokens newly made findable.
        """
        holding = self._holdings[sequence.sequence_id]
        whole = self._commit_limit(sequence) // self.config.block_size * self.config.block_size
        return self._insert(sequence, holding, whole) if whole > holding.num_committed else 0

    def free(self, sequence: Sequence, *, keep_tail: bool = True) -> int:
        """Take all blocks back, tail first. A sequence that holds nothing is left alone.

        The last block, when not full, becomes findable too if nobody else writes to it. `keep_tail=False` prevents
        that: for a step that failed, whose copies may not have run.

        Returns:
            Prompt tokens newly made findable.
        """
        holding = self._holdings.get(sequence.sequence_id)
        if holding is None:
            return 0
        written = 0
        limit = self._commit_limit(sequence)
        if keep_tail and limit > holding.num_committed:
            last = holding.table.ids[(limit - 1) // self.config.block_size]
            if self.pool.is_writable(last):
                written = self._insert(sequence, holding, limit)
        del self._holdings[sequence.sequence_id]
        self.pool.release(reversed(holding.table.ids))
        self.prefix_cache.released(holding.path, holding.num_committed)
        return written

    def block_table(self, sequence: Sequence) -> BlockTable:
        """The live table of a sequence that holds blocks."""
        return self._holdings[sequence.sequence_id].table

    def holds(self, sequence: Sequence) -> bool:
        """True while the sequence holds blocks."""
        return sequence.sequence_id in self._holdings

    def num_exclusive_blocks(self, sequence: Sequence) -> int:
        """Blocks only this sequence holds: what freeing it would make available. Cost: O(its blocks)."""
        return sum(self.pool.ref_count(block) == 1 for block in self.block_table(sequence).ids)

    def storable_prefix(self, sequence: Sequence, other: Sequence, start: int) -> int:
        """Tokens that `other` will make findable and `sequence` could use, if they share a block's worth from `start`.

        0 when they part within `block_size` tokens of `start`, or nothing can be shared between them.
        """
        a, b = self._path(sequence), self._path(other)
        most = other.prompt_len if self.config.reuse_generated == "off" else other.num_tokens
        limit = min(sequence.num_tokens - 1, most)
        if a.namespace != b.namespace or self.config.prefix_cache == "none":
            return 0
        near = self.config.block_size
        if limit < start + near or common_prefix(a.packed, start, b.packed, start, near) < near:
            return 0
        return common_prefix(a.packed, 0, b.packed, 0, limit)

    def query(self, namespace: bytes, token_ids: list[TokenId]) -> int:
        """Tokens of a prompt that would be read from the cache. Changes nothing."""
        return self.prefix_cache.match(self._loose_path(namespace, token_ids), len(token_ids) - 1).num_tokens

    def explain(self, namespace: bytes, token_ids: list[TokenId]) -> MissReport:
        """The nearest stored prefix of a prompt, where it parts from it, and why. Changes nothing."""
        return self.prefix_cache.explain(self._loose_path(namespace, token_ids), len(token_ids) - 1)

    def explain_start(self, sequence: Sequence) -> MissReport:
        """The same for the prompt of a sequence that was just admitted. Changes nothing."""
        return self.prefix_cache.explain(self._path(sequence), sequence.prompt_len - 1)

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks that pins hold."""
        return len(set(itertools.chain(*self._pins.values())))

    def retain(self, namespace: bytes, token_ids: list[TokenId], priority: int, lifetime: int) -> int:
        """Keep a stored prefix before those of lower priority, for `lifetime` from now and from each use.

        Soft: within `hint_share` of the pool. Returns how many leading tokens are kept.
        """
        path = self._loose_path(namespace, token_ids)
        return self.prefix_cache.retain(path, len(token_ids), priority, lifetime)

    def pin(self, namespace: bytes, token_ids: list[TokenId]) -> TokenPath | None:
        """Hold the whole blocks of a stored prefix until `unpin`.

        Returns:
            What to give to `unpin`; None when no whole block of it is stored, or pins would hold more than
            `pin_share` of the pool.
        """
        path = self._loose_path(namespace, token_ids)
        blocks = self.prefix_cache.match(path, len(token_ids)).blocks
        pinned = set(itertools.chain(blocks, *self._pins.values()))
        if not blocks or len(pinned) > self.config.pin_share * self.config.num_blocks:
            return None
        self.pool.acquire(blocks)
        self._pins[path] = list(blocks)
        return path

    def unpin(self, pin: TokenPath) -> None:
        """Let a pinned prefix go; one that was let go already stays so."""
        blocks = self._pins.pop(pin, None)
        if blocks is not None:
            self.pool.release(reversed(blocks))
            self.prefix_cache.released(pin, len(blocks) * self.config.block_size)

    def drop_oldest_pin(self) -> bool:
        """Let the oldest pin go, because a request could not run beside it; False when there is none."""
        if not self._pins:
            return False
        self.unpin(next(iter(self._pins)))
        return True

    def reset(self) -> None:
        """Forget every stored prefix, and every pin. Running sequences keep their blocks."""
        for pin in list(self._pins):
            self.unpin(pin)
        self.prefix_cache.reset()
        for holding in self._holdings.values():
            holding.num_committed = 0

    def check_invariants(self) -> None:
        """Recount holders from the tables and check pool and index. Cost: O(everything).

        Raises:
            InvariantError: a count is wrong, or the index is unsound.
        """
        self.pool.check_invariants()
        self.prefix_cache.check_invariants()
        holders = [0] * self.pool.num_blocks
        for holding in self._holdings.values():
            for block in holding.table.ids:
                holders[block] += 1
        for block in itertools.chain(self._copy_sources, self.published.held_blocks(), *self._pins.values()):
            holders[block] += 1
        for block, count in enumerate(holders):
            counted = self.pool.ref_count(block)
            if count != counted:
                raise InvariantError(f"block {block}: {count} holders, counted {counted}")

    def _first_slots(self, sequence: Sequence, num_tokens: int, match: PrefixMatch, keep: int) -> Allocation | None:
        table = BlockTable(self.config.block_size, match.blocks)
        if match.partial is not None:
            table.append([match.partial])
        path = self._path(sequence)
        holding = _Holding(table, path, len(match.blocks) * self.config.block_size)
        shared = list(table.ids)
        self.pool.acquire(shared)
        self._holdings[sequence.sequence_id] = holding
        allocation = self._grow(holding, match.num_tokens, num_tokens, keep)
        if allocation is None:
            del self._holdings[sequence.sequence_id]
            self.pool.release(reversed(shared))
            self.prefix_cache.released(path, match.num_tokens)
            return None
        if match.num_tokens:
            self.prefix_cache.touch(path, match.num_tokens, self._now)
            self._leases.begin(sequence.sequence_id, path, match.num_tokens)
        self.stats.num_queries += 1
        self.stats.queried_tokens += sequence.num_tokens - 1
        self.stats.hit_tokens += match.num_tokens
        return allocation

    def _grow(self, holding: _Holding, start: int, num_tokens: int, keep: int) -> Allocation | None:
        table = holding.table
        shared = self._shared_indices(table, start, num_tokens)
        num_fresh = table.missing_blocks(start + num_tokens) + len(shared)
        if not num_fresh:
            return Allocation()
        fresh = self._take(num_fresh, keep)
        if fresh is None:
            return None
        copies = [BlockCopy(table.replace(index, block), block) for index, block in zip(shared, fresh, strict=False)]
        self._copy_sources.extend(copy.source for copy in copies)  # the table's hold on them lasts until they ran
        table.append(fresh[len(shared) :])
        self.stats.copied_blocks += len(copies)
        return Allocation(tuple(fresh), tuple(copies))

    def _shared_indices(self, table: BlockTable, start: int, num_tokens: int) -> list[int]:
        """Table indices that would be written to although somebody else may read them."""
        written = table.written_by(start, num_tokens)
        return [index for index in written if not self.pool.is_writable(table.ids[index])]

    def _take(self, count: int, keep: int) -> list[BlockId] | None:
        if count + keep > self.pool.num_available:
            return None
        short = count - self.pool.num_free
        if short > 0:
            self.stats.evicted_blocks += self.prefix_cache.evict(short)
        blocks = self.pool.allocate(count)
        self.stats.allocated_blocks += count if blocks is not None else 0
        return blocks

    def _insert(self, sequence: Sequence, holding: _Holding, num_tokens: int) -> int:
        insertion = self.prefix_cache.insert(self._path(sequence), num_tokens, holding.table.ids, self._now)
        for index, block in insertion.replaced:
            self.pool.acquire([block])
            self.pool.release([holding.table.replace(index, block)])
        self.stats.deduplicated_blocks += len(insertion.replaced)
        self.stats.inserted_tokens += insertion.num_stored - insertion.num_known
        holding.num_committed = num_tokens
        self._leases.begin(sequence.sequence_id, holding.path, num_tokens)
        return max(0, min(insertion.num_stored, sequence.prompt_len) - insertion.num_known)

    def _commit_limit(self, sequence: Sequence) -> int:
        """Tokens of the sequence that may become findable now: computed, and of the prompt if only those may."""
        if self.config.reuse_generated == "off":
            return min(sequence.num_computed_tokens, sequence.prompt_len)
        return sequence.num_computed_tokens

    def _path(self, sequence: Sequence) -> TokenPath:
        path = self._paths[sequence.sequence_id]
        path.extend(sequence.token_ids)
        return path

    def _loose_path(self, namespace: bytes, token_ids: list[TokenId]) -> TokenPath:
        path = TokenPath(namespace, root=self._root)
        path.extend(token_ids)
        self.published.attach(path, len(token_ids) - 1)
        return path
