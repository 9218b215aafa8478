"""Counters of the cache, in tokens unless the name says blocks. They only grow."""

from msgspec import Struct, field


class Histogram:
    """Counts of values by powers of two: bucket `i` holds values below `2**i` and not below half of that."""

    def __init__(self) -> None:
        self.counts = [0] * 64

    def add(self, value: int, weight: int = 1) -> None:
        """Count `value`, from 0 to 2^63, `weight` times."""
        self.counts[value.bit_length()] += weight

    @property
    def total(self) -> int:
        """Values counted."""
        return sum(self.counts)


class CacheStats(Struct):
    """What the manager and its index did since the start."""

    num_queries: int = 0  # admissions that asked the index
    queried_tokens: int = 0  # tokens of those admissions that could have hit
    hit_tokens: int = 0  # of these, tokens whose forward pass was skipped
    inserted_tokens: int = 0  # tokens newly made findable
    allocated_blocks: int = 0
    copied_blocks: int = 0  # copy-on-write, of forks and of hits that end inside a block
    deduplicated_blocks: int = 0  # second copies folded into the first
    evicted_blocks: int = 0
    lifetime: Histogram = field(default_factory=Histogram)  # time from storing a block to evicting it, by block
    reuse_gap: Histogram = field(default_factory=Histogram)  # time between uses of a stored block, by block
