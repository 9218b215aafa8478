"""Least recently used on single blocks: every stored prefix of whole blocks in one dictionary, with its last use."""

from collections.abc import Sequence

Prefix = tuple[bytes, tuple[int, ...]]


class BlockwiseLRU:
    """A pool of whole blocks; of those no stored block follows, the one used first goes first."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.used: dict[Prefix, int] = {}
        self.serial = 0

    def _prefixes(self, namespace: bytes, tokens: Sequence[int]) -> list[Prefix]:
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [(namespace, tuple(tokens[:end])) for end in ends]

    def _use(self, prefix: Prefix) -> None:
        self.serial += 1
        self.used[prefix] = self.serial

    def match(self, namespace: bytes, tokens: Sequence[int]) -> int:
        """Tokens of the longest stored prefix."""
        return sum(prefix in self.used for prefix in self._prefixes(namespace, tokens)) * self.block_size

    def run(self, namespace: bytes, tokens: Sequence[int]) -> None:
        """One request: it holds what it found and takes room for all the rest, a last block not full among it."""
        prefixes = self._prefixes(namespace, tokens)
        found = [prefix for prefix in prefixes if prefix in self.used]
        needed = -(-len(tokens) // self.block_size) - len(found)
        while len(self.used) + needed > self.num_blocks:
            self._evict(held=found)
        for prefix in reversed(found):
            self._use(prefix)
        for prefix in prefixes[len(found) :]:
            self._use(prefix)

    def _evict(self, held: list[Prefix]) -> None:
        parents = {(namespace, tokens[: -self.block_size]) for namespace, tokens in self.used}
        leaves = [prefix for prefix in self.used if prefix not in parents and prefix not in held]
        del self.used[min(leaves, key=self.used.__getitem__)]
