"""All prefixes of a trace: what a cache without bounds would find, and the past and future of each block.

A node is a run of blocks that every request which has any of them has all of; a request is the node it ends in.
Known only when the whole trace has been read, so a replay reads it twice.
"""

from array import array
from collections.abc import Iterator

import numpy as np

from foreword.kv_cache.prefix_cache import TOKEN_BYTES
from foreword.kv_cache.token_runs import common_prefix
from foreword.replay.layout import Layout
from foreword.replay.tally import Tally, prompt_symbols, usable_symbols
from foreword.replay.trace import ReplayRequest


class Run:
    """Blocks `[start, end)` of every request below. `keys` tells blocks apart, a fixed number of bytes each."""

    __slots__ = ("children", "end", "keys", "number", "parent", "start")

    def __init__(self, number: int, parent: "Run | None", start: int, end: int, keys: bytes | bytearray) -> None:
        self.number = number
        self.parent = parent
        self.start = start
        self.end = end
        self.keys = bytearray(keys)
        self.children: dict[bytes, Run] = {}

    def path(self) -> Iterator["Run"]:
        """This run and those before it, deepest first, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixTree:
    """Takes the requests of a trace in, in order."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.unbounded = Tally()  # what a cache of any size finds, in whole blocks
        self.distinct_blocks = 0
        self.runs: list[Run] = []
        self.ends: list[Run] = []  # of each request; its whole blocks are those up to `ends[i].end`
        self.usable_blocks = array("q")  # of each request: leading blocks that may be found
        self.num_blocks = array("q")  # of each request: blocks held while it runs, a last one not full among them
        self.num_tokens = array("q")
        self.prompt_blocks = array("q")  # of each request: whole blocks of its prompt
        self._key_tokens = 1 if layout.is_uniform else layout.index_block
        self._roots: dict[bytes, Run] = {}

    @property
    def longest(self) -> int:
        """Most blocks one request holds."""
        return max(self.num_blocks, default=0)

    def add(self, request: ReplayRequest) -> None:
        """Take the next request in. Cost: O(its blocks)."""
        layout = self.layout
        count, rest = divmod(request.num_symbols, layout.index_block)
        end, found = self._insert(request.namespace, self._keys(request, count), count)
        usable = usable_symbols(request, layout) // layout.index_block
        hits = min(found, usable)
        self.unbounded.add(request, layout, hits, hits * layout.index_block)
        self.distinct_blocks += count - found
        self.ends.append(end)
        self.usable_blocks.append(usable)
        self.num_blocks.append(count + (rest > 0))
        self.num_tokens.append(request.num_tokens)
        self.prompt_blocks.append(prompt_symbols(request, layout) // layout.index_block)

    def _keys(self, request: ReplayRequest, count: int) -> bytes:
        size = self.layout.index_block * TOKEN_BYTES
        keys = request.packed[: count * size]
        if not self.layout.is_uniform:
            return keys
        return np.frombuffer(keys, np.int32)[:: self.layout.index_block].tobytes()

    def _insert(self, namespace: bytes, keys: bytes, count: int) -> tuple[Run, int]:
        """The run that ends after `count` blocks, made where it was missing, and how many of them were there."""
        width = self._key_tokens
        size = width * TOKEN_BYTES
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = self._new(None, 0, 0, b"")
        depth = 0
        while depth < count:
            child = node.children.get(keys[depth * size : (depth + 1) * size])
            if child is None:
                break
            limit = min(child.end - child.start, count - depth) * width
            depth += common_prefix(child.keys, 0, keys, depth * width, limit) // width
            node = child if depth == child.end else self._split(child, depth)
        found = depth
        if depth < count:
            leaf = self._new(node, depth, count, keys[depth * size :])
            node.children[bytes(leaf.keys[:size])] = leaf
            node = leaf
        return node, found

    def _new(self, parent: Run | None, start: int, end: int, keys: bytes | bytearray) -> Run:
        node = Run(len(self.runs), parent, start, end, keys)
        self.runs.append(node)
        return node

    def _split(self, node: Run, at: int) -> Run:
        """Cut the front of a run off and return it; requests that ended in `node` still do."""
        assert node.parent is not None
        size = self._key_tokens * TOKEN_BYTES
        cut = (at - node.start) * size
        upper = self._new(node.parent, node.start, at, node.keys[:cut])
        node.parent.children[bytes(upper.keys[:size])] = upper
        del node.keys[:cut]
        node.start, node.parent = at, upper
        upper.children[bytes(node.keys[:size])] = node
        return upper
