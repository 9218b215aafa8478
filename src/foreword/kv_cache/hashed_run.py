"""A run of whole blocks of the hash index, and the chained hashes of those that somebody has asked for."""

from array import array

from foreword.kv_cache.block_hash import chain_hashes
from foreword.kv_cache.prefix_cache import TOKEN_BYTES, BlockHash
from foreword.kv_cache.retained import Domain, Retained

HASH_BYTES = 32


class HashedRun(Retained):
    """Blocks `[start, end)` of every sequence stored below it; three flat arrays, no object a block.

        block size 4      blocks    [b7,          b3]                      array of ids
                          tokens    [9 9 1 4      4 2 0 7]                 packed, one comparison a run
                          _hashes   [h2           ]                        h3 is made when it is needed

    `key` is what the parent finds the run by: the hash of its first block, as far as the index keeps it. A hash says
    which run comes next; whether it is the right one, its tokens say. A root is a run of no blocks whose `seed` is the
    namespace's hash. `children` is None in a leaf. `name` is unique in the index; a root's is its namespace.
    """

    __slots__ = ("_hashes", "block_size", "blocks", "children", "key", "name", "parent", "seed", "start", "tokens")

    def __init__(
        self, parent: "HashedRun | None", block_size: int, domain: Domain, name: int | bytes, key: bytes
    ) -> None:
        super().__init__(domain)
        self.parent = parent
        self.block_size = block_size
        self.name = name
        self.key = key
        self.start = parent.end if parent else 0
        self.seed = BlockHash(b"")  # a root's only
        self.blocks: array[int] = array("i")
        self.tokens = bytearray()
        self.children: dict[bytes, HashedRun] | None = None
        self._hashes = bytearray()  # of leading blocks

    @property
    def is_leaf(self) -> bool:
        """True when no stored block follows."""
        return self.children is None

    @property
    def num_blocks(self) -> int:
        """Blocks owned."""
        return len(self.blocks)

    @property
    def num_tokens(self) -> int:
        """Tokens up to its end."""
        return self.end * self.block_size

    @property
    def end(self) -> int:
        """Where the run ends, in blocks from the first of the sequence."""
        return self.start + len(self.blocks)

    def block_tokens(self, offset: int) -> bytearray:
        """Packed tokens of one block of the run."""
        size = self.block_size * TOKEN_BYTES
        return self.tokens[offset * size : (offset + 1) * size]

    def hash_at(self, offset: int) -> BlockHash:
        """Chained hash of one block of the run, or with -1 of the block before it.

        Cost: O(blocks of the run not hashed yet), once; amortised O(1).
        """
        if offset < 0:
            return self.parent.last_hash() if self.parent else self.seed
        known = len(self._hashes) // HASH_BYTES
        if offset >= known:
            self.take_hashes(chain_hashes(self._kept_hash(known - 1), self.tokens, known, offset + 1, self.block_size))
        return self._kept_hash(offset)

    def last_hash(self) -> BlockHash:
        """Hash that what follows the run is chained to. A root's is its namespace's."""
        return self.hash_at(len(self.blocks) - 1)

    def take_hashes(self, hashes: list[BlockHash]) -> None:
        """Keep the hashes of the next blocks that have none."""
        self._hashes += b"".join(hashes)

    def add_child(self, child: "HashedRun") -> None:
        """Hang a run below this one, or another in the place of one with its key."""
        if self.children is None:
            self.children = {}
        self.children[child.key] = child

    def remove_child(self, child: "HashedRun") -> None:
        """Take a child away; with the last one this is a leaf."""
        assert self.children is not None
        del self.children[child.key]
        if not self.children:
            self.children = None

    def cut_front(self, count: int, name: int, key_bytes: int) -> "HashedRun":
        """Split the run behind its first `count` blocks; returns the new upper part, which takes this run's place."""
        parent = self.parent
        assert parent is not None
        upper = HashedRun(parent, self.block_size, self.domain, name, self.key)
        lower_key = self.hash_at(count)[:key_bytes]
        size, width = count * self.block_size * TOKEN_BYTES, count * HASH_BYTES
        upper.blocks, upper.tokens, upper._hashes = self.blocks[:count], self.tokens[:size], self._hashes[:width]
        del self.blocks[:count], self.tokens[:size], self._hashes[:width]
        parent.add_child(upper)
        self.start, self.parent, self.key = upper.end, upper, lower_key
        upper.add_child(self)
        return upper

    def keep(self, count: int) -> None:
        """Forget all but the first `count` blocks."""
        del self.blocks[count:], self.tokens[count * self.block_size * TOKEN_BYTES :]
        del self._hashes[count * HASH_BYTES :]

    def _kept_hash(self, offset: int) -> BlockHash:
        if offset < 0:
            return self.hash_at(-1)
        return BlockHash(bytes(self._hashes[offset * HASH_BYTES : (offset + 1) * HASH_BYTES]))
