"""Physical blocks and who holds them. Ids and counts only: a pool knows neither tokens nor bytes.

A block is in exactly one of three states, and `free + held + cached == num_blocks` at all times:

    free     ref count 0, content dropped                       on the free stack
    held     ref count >= 1                                     findable or not
    cached   ref count 0, content still findable by the index   the index decides when it goes

Two consequences. Cached blocks never sit on the free list, so a hit takes nothing out of its middle and the list
can be a plain stack; and a released block that nobody can find again (an unaligned tail) is reused before any
cached block is evicted. The stack is last in, first out: memory already touched is touched again.
"""

from array import array
from collections.abc import Iterable, Iterator

from foreword.core.errors import InvariantError
from foreword.core.types import BlockId


class BlockPool:
    """Hands out blocks and counts their holders. Every operation is O(1) a block."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = array("i", bytes(4 * num_blocks))
        self._findable = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_cached = 0

    @property
    def num_free(self) -> int:
        """Blocks with no content worth keeping."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks nobody holds whose content can still be found."""
        return self._num_cached

    @property
    def num_held(self) -> int:
        """Blocks with at least one holder."""
        return self.num_blocks - len(self._free) - self._num_cached

    @property
    def num_available(self) -> int:
        """Blocks that can be had without taking any from a holder: free, or cached and then evicted."""
        return len(self._free) + self._num_cached

    def free_blocks(self) -> frozenset[BlockId]:
        """The free blocks themselves. Cost: O(num_blocks)."""
        return frozenset(BlockId(block) for block in self._free)

    def ref_count(self, block: int) -> int:
        """Number of holders."""
        return self._ref_counts[block]

    def is_findable(self, block: int) -> bool:
        """True while an index refers to the block; its content must then never change."""
        return bool(self._findable[block])

    def is_writable(self, block: int) -> bool:
        """True when exactly one holder exists and no index refers to the block."""
        return self._ref_counts[block] == 1 and not self._findable[block]

    def allocate(self, count: int) -> list[BlockId] | None:
        """Take `count` free blocks, each with one holder; None, and nothing taken, when fewer are free."""
        if count > len(self._free):
            return None
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        for block in taken:
            self._ref_counts[block] = 1
        return [BlockId(block) for block in taken]

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add one holder to each block.

        Raises:
            InvariantError: a block is free, so its content is gone; blocks before it in the order are acquired.
        """
        ref_counts = self._ref_counts
        for block in blocks:
            if ref_counts[block] == 0:
                if not self._findable[block]:
                    raise InvariantError(f"block {block} is free and cannot be acquired")
                self._num_cached -= 1
            ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Take one holder from each block, in the order given; a last holder frees or caches it.

        Raises:
            InvariantError: a block has no holder (a double free); blocks before it in the order are released.
        """
        ref_counts = self._ref_counts
        for block in blocks:
            left = ref_counts[block] - 1
            if left < 0:
                raise InvariantError(f"block {block} is released more often than acquired")
            ref_counts[block] = left
            if left == 0:
                if self._findable[block]:
                    self._num_cached += 1
                else:
                    self._free.append(block)

    def publish(self, blocks: Iterable[int]) -> None:
        """Declare that an index refers to each block.

        Raises:
            InvariantError: nobody holds a block, or it is findable already; those before it are published.
        """
        ref_counts, findable = self._ref_counts, self._findable
        for block in blocks:
            if findable[block] or ref_counts[block] == 0:
                raise InvariantError(f"block {block} is free or already findable")
            findable[block] = 1

    def withdraw(self, block: int) -> None:
        """Declare that no index refers to the block any longer; with no holder its content is dropped.

        Raises:
            InvariantError: the block is not findable; nothing changed.
        """
        if not self._findable[block]:
            raise InvariantError(f"block {block} is not findable")
        self._findable[block] = 0
        if self._ref_counts[block] == 0:
            self._num_cached -= 1
            self._free.append(block)

    def findable_blocks(self) -> Iterator[BlockId]:
        """Every block an index refers to, in id order. Cost: O(num_blocks)."""
        return (BlockId(block) for block in range(self.num_blocks) if self._findable[block])

    def check_invariants(self) -> None:
        """Recount everything. Cost: O(num_blocks).

        Raises:
            InvariantError: a block is in no state or in two, or a count is wrong.
        """
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a block is on the free stack twice")
        cached = 0
        for block in range(self.num_blocks):
            refs, findable = self._ref_counts[block], self._findable[block]
            cached += refs == 0 and findable == 1
            if (block in free) != (refs == 0 and not findable):
                raise InvariantError(f"block {block}: {refs} holders, findable {findable}, free {block in free}")
        if cached != self._num_cached:
            raise InvariantError(f"{cached} blocks are cached, counted {self._num_cached}")
