"""The default index: a compressed tree over tokens, exact to the token.

A path from the root spells a stored prefix. Nodes part wherever sequences part, inside blocks too: a match ends at
any token, and when it ends inside a block, that block is offered for copying. Runs are compared as bytes, so the cost
of a match is the number of nodes on its path plus one pass over memory.

    insert "ABCDEFGH", then "ABCDXY" (block size 4):          match "ABCDEQ": 5 tokens

        root ── ABCD [b0] ─┬─ EFGH [b1]                        b0 shared, first row of b1 copied
                           └─ XY   [b2, partial]

Held blocks are prefix-closed: whoever holds a block of a path holds every block before it. So a leaf whose last block
nobody holds can lose that block, and eviction never has to look anywhere but at leaves.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from foreword.core.config import CacheConfig
from foreword.core.errors import InvariantError
from foreword.core.types import BlockId
from foreword.kv_cache.block_hash import extend_hashes
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.events import AllBlocksCleared, BlockRemoved, EventLog, stored_event
from foreword.kv_cache.explain import MissCause, MissReport
from foreword.kv_cache.prefix_cache import TOKEN_BYTES, BlockHash, Insertion, PrefixMatch, TokenPath
from foreword.kv_cache.radix_node import RadixNode
from foreword.kv_cache.retained import Domain
from foreword.kv_cache.retention import Retention
from foreword.kv_cache.stats import CacheStats
from foreword.kv_cache.token_runs import common_prefix, token_at

MAX_DEPARTED = 4096
"""Evicted runs remembered by their first tokens, so that a miss can be explained."""


class RadixPrefixCache:
    """Finds the longest stored prefix to the token."""

    def __init__(self, config: CacheConfig, pool: BlockPool, stats: CacheStats, events: EventLog | None = None) -> None:
        self._pool = pool
        self._block_size = config.block_size
        self._stats = stats
        self._events = events
        self._retention: Retention[RadixNode] = Retention(config, self._is_candidate)
        self._roots: dict[int | bytes, RadixNode] = {}
        self._last_name = 0
        self._departed: OrderedDict[tuple[int | bytes, bytes], MissCause] = OrderedDict()

    def match(self, path: TokenPath, limit: int) -> PrefixMatch:
        """Longest stored prefix of the first `limit` tokens. Cost: O(nodes on the path) and a pass over the tokens."""
        nodes, depth = self._walk(path, limit)
        if not depth:
            return PrefixMatch()
        blocks = path.base_blocks[: depth // self._block_size]
        if not nodes:
            return PrefixMatch(len(blocks) * self._block_size, blocks)
        for node in nodes[:-1]:
            blocks.extend(node.blocks)
        last = nodes[-1]
        blocks.extend(last.blocks[: depth // self._block_size - last.first_index])
        partial = BlockId(last.block_at(depth - 1)) if depth % self._block_size else None
        return PrefixMatch(depth, blocks, partial)

    def touch(self, path: TokenPath, num_tokens: int, now: int) -> None:
        """Raise the worth of what the match used, to the end of its last block; a longer run is split there."""
        self._retention.advance(now)
        nodes, depth = self._walk(path, num_tokens)
        self._end_at_block(nodes, depth)
        for node in reversed(nodes):  # so that ancestors stay the more recently used
            self._stats.reuse_gap.add(now - node.used_at, node.num_blocks)
            self._retention.used(node)

    def insert(self, path: TokenPath, num_tokens: int, blocks: "array[int]", now: int) -> Insertion:
        """Store a prefix. Cost: O(blocks newly stored), and the walk to them."""
        self._retention.advance(now)
        nodes, depth = self._walk(path, num_tokens)
        replaced = self._replacements(nodes, depth, blocks)
        if depth < num_tokens:
            self._extend(path, num_tokens, blocks, nodes, depth)
        return Insertion(depth, num_tokens, tuple(replaced))

    def released(self, path: TokenPath, num_tokens: int) -> None:
        """The end of the path may be evictable now."""
        nodes, _ = self._walk(path, num_tokens)
        if nodes:
            self._retention.offer(nodes[-1])

    def advance(self, now: int) -> None:
        """Lifetimes that have passed end."""
        self._retention.advance(now)

    def retain(self, path: TokenPath, num_tokens: int, priority: int, lifetime: int) -> int:
        """Keep a stored prefix, to the end of its last block; returns how many leading tokens the budget allows."""
        kept = 0
        nodes, depth = self._walk(path, num_tokens)
        self._end_at_block(nodes, depth)
        for node in nodes:
            if not self._retention.hint(node, priority, lifetime):
                break
            kept = min(depth, node.num_tokens)
        return kept

    def share(self, quotas: Mapping[bytes, int]) -> None:
        """Let a tenant's findable blocks take so many at most, from the next one stored."""
        self._retention.share(quotas)

    def evict(self, count: int) -> int:
        """Withdraw up to `count` cached blocks, tails of leaves first. Cost: O(count + log leaves), amortised."""
        evicted = 0
        while evicted < count:
            leaf = self._retention.next_victim()
            if leaf is None:
                break
            evicted += self._evict_tail(leaf, count - evicted)
        return evicted

    def reset(self) -> None:
        """Forget every prefix. Cost: O(blocks stored)."""
        for node in self._nodes():
            for block in node.blocks:
                self._pool.withdraw(block)
        self._roots.clear()
        self._departed.clear()
        self._retention.clear()
        if self._events is not None:
            self._events.append(AllBlocksCleared())

    def explain(self, path: TokenPath, limit: int) -> MissReport:
        """Where and why the first `limit` tokens of `path` part from what is stored. Changes nothing."""
        nodes, depth = self._walk(path, limit)
        if depth == limit:
            return MissReport(depth, MissCause.NONE)
        wanted = token_at(path.packed, depth)
        node = nodes[-1] if nodes else self._roots.get(path.namespace)
        if node is not None and depth < node.num_tokens:
            return MissReport(depth, MissCause.CHANGED, wanted, token_at(node.tokens, depth - node.start))
        head = bytes(path.packed[depth * TOKEN_BYTES : (depth + self._block_size) * TOKEN_BYTES])
        for size in range(len(head), 0, -TOKEN_BYTES):
            cause = self._departed.get((node.name if node else path.namespace, head[:size]))
            if cause is not None:
                return MissReport(depth, cause, wanted)
        if node is not None and node.children:
            return MissReport(depth, MissCause.CHANGED, wanted, next(reversed(node.children)))
        is_first = node is None or not depth
        return MissReport(depth, self._cause_elsewhere(path, limit) if is_first else MissCause.NEVER_SEEN, wanted)

    def stored_hashes(self) -> Iterator[BlockHash]:
        """Hashes of all whole blocks stored, in no order; empty unless events are kept. Cost: O(blocks)."""
        for node in self._nodes():
            yield from node.hashes

    def check_invariants(self) -> None:
        """Check every node, and that exactly the pool's findable blocks are stored.

        Raises:
            InvariantError: the tree is unsound.
        """
        stored: list[int] = []
        for node in self._nodes():
            stored.extend(node.blocks)
            self._check_node(node)
        self._retention.check_invariants(self._nodes())
        if sorted(stored) != list(self._pool.findable_blocks()):
            raise InvariantError("the tree and the pool disagree on what is findable")

    # -- the tree --------------------------------------------------------------------------------------------------

    def _walk(self, path: TokenPath, limit: int) -> tuple[list[RadixNode], int]:
        """Nodes that spell the longest stored prefix of the first `limit` tokens, and its length."""
        nodes: list[RadixNode] = []
        depth = min(path.base, limit)
        node = self._roots.get(path.namespace)
        while node is not None and node.children is not None and depth < limit:
            child = node.children.get(token_at(path.packed, depth))
            if child is None:
                break
            nodes.append(child)
            run = len(child.tokens) // TOKEN_BYTES
            depth += common_prefix(child.tokens, 0, path.packed, depth, min(run, limit - depth))
            node = child if depth == child.num_tokens else None
        return nodes, depth

    def _replacements(self, nodes: list[RadixNode], depth: int, blocks: "array[int]") -> list[tuple[int, BlockId]]:
        """Whole blocks below `depth` for which the tree has another physical block than `blocks`."""
        replaced: list[tuple[int, BlockId]] = []
        for node in nodes:
            first = node.first_index
            count = min(node.num_tokens, depth) // self._block_size - first
            theirs = node.blocks[:count]
            if theirs != blocks[first : first + count]:
                pairs = enumerate(zip(theirs, blocks[first : first + count], strict=True), first)
                replaced.extend((index, BlockId(stored)) for index, (stored, own) in pairs if stored != own)
        return replaced

    def _extend(
        self, path: TokenPath, num_tokens: int, blocks: "array[int]", nodes: list[RadixNode], depth: int
    ) -> None:
        if nodes and depth < nodes[-1].num_tokens:
            parent = self._split(nodes[-1], depth)
        else:
            parent = nodes[-1] if nodes else self._root(path)
        if parent.children is None and parent.parent is not None and parent.has_partial:
            self._withdraw_last(parent)  # the new block begins with the same rows
        node = parent
        if not self._grows_in_place(parent):
            self._last_name += 1
            node = RadixNode(parent, depth, self._block_size, parent.domain, self._last_name)
        node.tokens += path.packed[depth * TOKEN_BYTES : num_tokens * TOKEN_BYTES]
        if node is not parent:
            parent.add_child(node)
        added = blocks[depth // self._block_size : -(-num_tokens // self._block_size)]
        self._pool.publish(added)
        node.blocks.extend(added)
        self._retention.stored(node, len(added))
        self._tell_stored(path, node, depth, num_tokens)
        self._retention.offer(node)
        self._enforce_quota(node.domain)

    def _tell_stored(self, path: TokenPath, node: RadixNode, depth: int, num_tokens: int) -> None:
        first, end = depth // self._block_size, num_tokens // self._block_size
        if self._events is None or first == end:
            return
        node.hashes.extend(extend_hashes(path, end, self._block_size)[first:end])
        self._events.append(stored_event(path, first, end, self._block_size))

    def _grows_in_place(self, node: RadixNode) -> bool:
        """A leaf nobody has hit yet is still its writer's own run."""
        return node.parent is not None and node.children is None and not node.num_uses and not node.priority

    def _end_at_block(self, nodes: list[RadixNode], depth: int) -> None:
        """Split the last node of a walk behind the block in which the walk ended."""
        end = -(-depth // self._block_size) * self._block_size
        if nodes and end < nodes[-1].num_tokens:
            nodes[-1] = self._split(nodes[-1], end)

    def _split(self, node: RadixNode, end: int) -> RadixNode:
        self._last_name += 1
        upper = node.cut_front(end, self._last_name)
        self._retention.split(upper, node)
        return upper

    def _root(self, path: TokenPath) -> RadixNode:
        root = self._roots.get(path.namespace)
        if root is None:
            domain = self._retention.domain(path.tenant)
            root = RadixNode(None, path.base, self._block_size, domain, path.namespace)
            self._roots[path.namespace] = root
        return root

    def _nodes(self) -> Iterator[RadixNode]:
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            if node.parent is not None:
                yield node
            if node.children is not None:
                pending.extend(node.children.values())

    def _cause_elsewhere(self, path: TokenPath, limit: int) -> MissCause:
        needed = min(limit - path.base, self._block_size)
        for root in self._roots.values():
            child = (root.children or {}).get(token_at(path.packed, path.base))
            if root.name == path.namespace or child is None or root.start != path.base:
                continue
            run = min(needed, len(child.tokens) // TOKEN_BYTES)
            if common_prefix(child.tokens, 0, path.packed, path.base, run) == run:
                return MissCause.OTHER_NAMESPACE
        return MissCause.NEVER_SEEN

    def _check_node(self, node: RadixNode) -> None:
        size, end = self._block_size, node.num_tokens
        parent = node.parent
        assert parent is not None
        assert parent.children is not None
        count = end // size - node.first_index + (1 if node.children is None and end % size else 0)
        problems = {
            "has an empty run": not node.tokens,
            "hangs at the wrong place": parent.num_tokens != node.start,
            "is not its parent's child": parent.children.get(token_at(node.tokens, 0)) is not node,
            f"owns {len(node.blocks)} blocks, not {count}": len(node.blocks) != count,
            "knows the wrong hashes": self._events is not None and len(node.hashes) != end // size - node.first_index,
        }
        for problem, found in problems.items():
            if found:
                raise InvariantError(f"radix node {node.name!r} at {node.start} {problem}")

    # -- eviction --------------------------------------------------------------------------------------------------

    def _is_candidate(self, node: RadixNode) -> bool:
        return node.children is None and len(node.blocks) > 0 and self._pool.ref_count(node.blocks[-1]) == 0

    def _enforce_quota(self, domain: Domain) -> None:
        quota = domain.quota
        while quota is not None and domain.num_blocks > quota:
            leaf = self._retention.next_victim(domain)
            if leaf is None:
                return
            self._stats.evicted_blocks += self._evict_tail(leaf, domain.num_blocks - quota)

    def _evict_tail(self, leaf: RadixNode, count: int) -> int:
        cause = MissCause.EXPIRED if leaf.expires_at and not leaf.priority else MissCause.EVICTED
        evicted = 0
        removed = []
        while evicted < count and self._is_candidate(leaf):
            self._stats.lifetime.add(self._retention.now - leaf.stored_at, 1)
            if leaf.hashes and not leaf.has_partial:
                removed.append(leaf.hashes[-1])
            self._withdraw_last(leaf)
            evicted += 1
        self._trim(leaf, cause)
        if removed and self._events is not None:
            self._events.append(BlockRemoved(tuple(removed)))
        return evicted

    def _withdraw_last(self, node: RadixNode) -> None:
        if len(node.hashes) == len(node.blocks):
            del node.hashes[-1:]
        self._pool.withdraw(node.blocks.pop())
        self._retention.dropped(node, 1)

    def _trim(self, node: RadixNode, cause: MissCause) -> None:
        """Cut a leaf to what its blocks cover; an empty one goes, and its parent may have become a leaf."""
        while node.parent is not None and node.children is None:
            end = node.covered_end()
            if end > node.start:
                if end < node.num_tokens:
                    self._remember(node.name, node.tokens[(end - node.start) * TOKEN_BYTES :], cause)
                    del node.tokens[(end - node.start) * TOKEN_BYTES :]
                self._retention.offer(node)
                return
            parent = node.parent
            self._remember(parent.name, node.tokens, cause)
            parent.remove_child(node)
            self._retention.removed(node)
            node = parent
        if node.parent is None and node.children is None:
            del self._roots[node.name]

    def _remember(self, name: int | bytes, tokens: bytearray, cause: MissCause) -> None:
        self._departed[name, bytes(tokens[: self._block_size * TOKEN_BYTES])] = cause
        if len(self._departed) > MAX_DEPARTED:
            self._departed.popitem(last=False)
