"""A sequence's block ids in order, kept as flat int32 so that the runner reads them without a Python loop."""

from array import array
from collections.abc import Iterable, Sequence

from foreword.core.types import BlockId, ceil_div


class BlockTable:
    """Maps a sequence's token positions to slots of the pool.

        position   0 ........ B-1 | B ....... 2B-1 | 2B ...
        block      ids[0]         | ids[1]         | ids[2]
        slot       ids[p // B] * B + p % B

    `ids` is an `array('i')` that lives as long as the table and is changed in place; readers use the buffer
    protocol and keep no view across steps (a live view would forbid the array to grow).
    """

    __slots__ = ("block_size", "ids")

    def __init__(self, block_size: int, blocks: Iterable[int] = ()) -> None:
        self.block_size = block_size
        self.ids: array[int] = array("i", blocks)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_slots(self) -> int:
        """Token positions the table covers."""
        return len(self.ids) * self.block_size

    def slot(self, position: int) -> int:
        """Slot of one token position; the position must lie below `num_slots`."""
        return self.ids[position // self.block_size] * self.block_size + position % self.block_size

    def missing_blocks(self, num_tokens: int) -> int:
        """Blocks to append before the table covers `num_tokens` positions."""
        return max(0, ceil_div(num_tokens, self.block_size) - len(self.ids))

    def written_by(self, start: int, num_tokens: int) -> range:
        """Indices of present blocks that writing positions `[start, start + num_tokens)` touches."""
        end = ceil_div(start + num_tokens, self.block_size)
        return range(start // self.block_size, min(end, len(self.ids)))

    def append(self, blocks: Sequence[BlockId]) -> None:
        """Cover `len(blocks)` more blocks of positions."""
        self.ids.extend(blocks)

    def replace(self, index: int, block: BlockId) -> BlockId:
        """Put another block at `index`; returns the one that was there."""
        previous = BlockId(self.ids[index])
        self.ids[index] = block
        return previous
