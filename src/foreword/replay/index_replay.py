"""One pool and one index, driven as the manager drives them, with no sequences, steps or model.

A request of a replay is alone, computes its whole prompt and ends. All the scheduler and the manager then do to the
index is the seven calls below, so they are made directly; `scheduler_replay` goes the whole way round, and a test
holds the two to the same counts.
"""

from array import array

from foreword.core.config import CacheConfig
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.manager import make_prefix_cache
from foreword.kv_cache.prefix_cache import PrefixMatch, TokenPath
from foreword.kv_cache.stats import CacheStats
from foreword.replay.layout import Layout
from foreword.replay.tally import Tally, blocks_needed, usable_symbols
from foreword.replay.trace import ReplayRequest


class IndexReplay:
    """Runs requests one after the other; `tally` holds the counts so far."""

    def __init__(self, config: CacheConfig, layout: Layout) -> None:
        self.tally = Tally()
        self.pool = BlockPool(config.num_blocks)
        self.prefix_cache = make_prefix_cache(config, self.pool, CacheStats())
        self._layout = layout
        self._now = 0

    def run(self, request: ReplayRequest) -> None:
        """Find the request's prefix, make room for the rest, store it and let everything go."""
        layout = self._layout
        if blocks_needed(request, layout) > self.pool.num_blocks:
            self.tally.refuse(request, layout)
            return
        self._now += 1
        path = TokenPath(request.namespace, packed=bytearray(request.packed))
        match = self.prefix_cache.match(path, usable_symbols(request, layout))
        table = self._table(path, match)
        if table is None:  # no room for the copy of a partly matched block beside the block itself
            match = match.whole_blocks(layout.index_block)
            table = self._table(path, match)
            assert table is not None
        self._store(path, table, len(match.blocks))
        self.tally.add(request, layout, len(match.blocks), match.num_tokens)

    def _table(self, path: TokenPath, match: PrefixMatch) -> "array[int] | None":
        """A block table that begins with the match; None when there is no room for the rest.

        An engine acquires every block of a match. Here the last one and the partly matched one stand for all: an
        index evicts nothing that has something behind it, so with its last block held a whole prefix stays. Traces
        with thousands of blocks a request replay several times as fast for it.
        """
        last = match.blocks[-1:]
        held = last if match.partial is None else last + array("i", [match.partial])
        self.pool.acquire(held)
        count = -(-path.num_tokens // self._layout.index_block) - len(match.blocks)
        fresh = self._take(count, len(match.blocks) - len(last))
        if fresh is None:
            self.pool.release(reversed(held))
            self.prefix_cache.released(path, match.num_tokens)
            return None
        if match.num_tokens:
            self.prefix_cache.touch(path, match.num_tokens, self._now)
        if match.partial is not None:
            self.pool.release([match.partial])  # its rows have been copied
        return match.blocks + fresh

    def _take(self, count: int, num_unheld: int) -> "array[int] | None":
        """Fresh blocks; None when only blocks of the match, `num_unheld` of which nobody holds, could give way."""
        if count + num_unheld > self.pool.num_available:
            return None
        short = count - self.pool.num_free
        if short > 0:
            self.tally.evicted_blocks += self.prefix_cache.evict(short)
        blocks = self.pool.allocate(count)
        return None if blocks is None else array("i", blocks)

    def _store(self, path: TokenPath, table: "array[int]", num_found: int) -> None:
        """Commit whole blocks, then the rest as the sequence ends; then let go, tail first."""
        size = self._layout.index_block
        whole = path.num_tokens // size * size
        for end in (whole, path.num_tokens):
            if end:
                self.prefix_cache.insert(path, end, table, self._now)
        self.pool.release(reversed(table[max(0, num_found - 1) :]))
        self.prefix_cache.released(path, path.num_tokens)
