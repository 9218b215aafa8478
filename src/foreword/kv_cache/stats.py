"""Counters of the cache, in tokens unless the name says blocks. They only grow."""

from dataclasses import dataclass


@dataclass(slots=True)
class CacheStats:
    """What the manager and its index did since the start."""

    num_queries: int = 0  # admissions that asked the index
    queried_tokens: int = 0  # tokens of those admissions that could have hit
    hit_tokens: int = 0  # of these, tokens whose forward pass was skipped
    inserted_tokens: int = 0  # tokens newly made findable
    allocated_blocks: int = 0
    copied_blocks: int = 0  # copy-on-write, of forks and of hits that end inside a block
    deduplicated_blocks: int = 0  # second copies folded into the first
    evicted_blocks: int = 0
