"""A node of the radix tree: a run of tokens and the blocks that end in it."""

from array import array

from foreword.kv_cache.prefix_cache import TOKEN_BYTES, BlockHash
from foreword.kv_cache.retained import Domain, Retained
from foreword.kv_cache.token_runs import token_at


class RadixNode(Retained):
    """Tokens `[start, end)` of every sequence below it, and the blocks whose last position lies in that range.

        block size 4        start = 6                    end = 13
        positions     0 1 2 3 | 4 5   6 7 | 8 9 10 11 | 12
        blocks        ancestors'   |  blocks[0]  | blocks[1] |  partial: blocks[2], only in a leaf

    The first block of a node may begin in an ancestor's run: children that part inside a block each have their own
    copy of it. A leaf owns the block its run ends in, full or not; an inner node owns whole blocks only, and rows up
    to its end are found in any child. `children` is None in a leaf. `name` is unique in the tree; a root's is its
    namespace.
    """

    __slots__ = ("block_size", "blocks", "children", "hashes", "name", "parent", "start", "tokens")

    def __init__(
        self, parent: "RadixNode | None", start: int, block_size: int, domain: Domain, name: int | bytes
    ) -> None:
        super().__init__(domain)
        self.parent = parent
        self.start = start
        self.block_size = block_size
        self.tokens = bytearray()
        self.blocks: array[int] = array("i")
        self.hashes: list[BlockHash] = []  # of whole blocks, when events are kept
        self.children: dict[int, RadixNode] | None = None
        self.name = name

    @property
    def is_leaf(self) -> bool:
        """True when no stored sequence goes on behind the run."""
        return self.children is None

    @property
    def num_blocks(self) -> int:
        """Blocks owned."""
        return len(self.blocks)

    @property
    def num_tokens(self) -> int:
        """Where the run ends, counted from the first token of the sequence."""
        return self.start + len(self.tokens) // TOKEN_BYTES

    @property
    def first_index(self) -> int:
        """Index, in a sequence's table, of `blocks[0]`."""
        return self.start // self.block_size

    @property
    def has_partial(self) -> bool:
        """True when the last block owned is not full."""
        return self.first_index + len(self.blocks) > self.num_tokens // self.block_size

    def covered_end(self) -> int:
        """Where a leaf's run must end so that every token of it lies in a block of its own or of an ancestor."""
        return min(self.num_tokens, (self.first_index + len(self.blocks)) * self.block_size)

    def add_child(self, child: "RadixNode") -> None:
        """Hang a node with a run below this one."""
        if self.children is None:
            self.children = {}
        self.children[token_at(child.tokens, 0)] = child

    def remove_child(self, child: "RadixNode") -> None:
        """Take a child away; with the last one this is a leaf."""
        assert self.children is not None
        del self.children[token_at(child.tokens, 0)]
        if not self.children:
            self.children = None

    def cut_front(self, end: int, name: int) -> "RadixNode":
        """Split the run at position `end`; returns the new upper part, which takes this node's place."""
        parent = self.parent
        assert parent is not None
        upper = RadixNode(parent, self.start, self.block_size, self.domain, name)
        size = (end - self.start) * TOKEN_BYTES
        count = end // self.block_size - self.first_index
        upper.tokens, upper.blocks, upper.hashes = self.tokens[:size], self.blocks[:count], self.hashes[:count]
        del self.tokens[:size], self.blocks[:count], self.hashes[:count]
        parent.add_child(upper)
        self.start, self.parent = end, upper
        upper.add_child(self)
        return upper

    def block_at(self, position: int) -> int:
        """A block that holds `position`, which lies in this node's run and not at a block's end."""
        node = self
        while position // node.block_size - node.first_index >= len(node.blocks):
            assert node.children is not None
            node = next(iter(node.children.values()))
        return node.blocks[position // node.block_size - node.first_index]
