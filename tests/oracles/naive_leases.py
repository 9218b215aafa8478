"""Which stored blocks are leased, kept the slow and obvious way: a clock time for each block."""

from dataclasses import dataclass, field

Block = tuple[int, int]
"""Name of a run, index of the block in it."""


@dataclass(slots=True)
class NaiveLeases:
    """Until when each block is leased, and for how long from each use."""

    now: int = 0
    lifetime: dict[Block, int] = field(default_factory=dict)
    ends: dict[Block, int] = field(default_factory=dict)

    def retain(self, name: int, num_blocks: int, lifetime: int) -> None:
        """Lease the first blocks of a run, never for less than before."""
        for block in ((name, index) for index in range(num_blocks)):
            before = self.lifetime[block] if self.is_leased(block) else 0
            self.lifetime[block] = max(before, lifetime)
            self.ends[block] = max(self.ends.get(block, 0), self.now + lifetime)

    def use(self, name: int, num_blocks: int) -> None:
        """A hit counts the time of what it covers anew."""
        for block in ((name, index) for index in range(num_blocks)):
            if self.is_leased(block):
                self.ends[block] = max(self.ends[block], self.now + self.lifetime[block])

    def drop(self, block: Block) -> None:
        """The block is gone, and its lease with it."""
        self.lifetime.pop(block, None)
        self.ends.pop(block, None)

    def is_leased(self, block: Block) -> bool:
        """True while the block's time has not passed."""
        return self.ends.get(block, 0) > self.now
