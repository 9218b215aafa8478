"""Prefixes that every namespace may begin with: what an operator has listed, whole, and nothing behind it.

    published    | P P P P | P P P P |            held here for good, so never evicted and never written to
    tenant a     | P P P P | P P P P | a a a a    its own namespace begins behind the published blocks
    tenant b     | P P P P | P P P P | b b b b    so does this one: nothing of a's is under anything of b's
    tenant c     | P P P P | p x …                only a part of P: c's own, found by nobody else

A sequence whose prompt goes on behind all whole blocks of a published prefix gets a path that starts there, in a
namespace made of its own and of the prefix. Where several fit, the longest does.
"""

import hashlib
from array import array
from collections.abc import Iterator

from foreword.core.types import TokenId
from foreword.kv_cache.block_pool import BlockPool
from foreword.kv_cache.prefix_cache import TOKEN_BYTES, PrefixCache, TokenPath

PUBLISHED = b"published"
"""Namespace in which a prefix is computed to be published; tenants' have another length."""


class Published:
    """The published prefixes of one pool, longest first."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._entries: list[tuple[bytes, array[int]]] = []

    @property
    def num_blocks(self) -> int:
        """Blocks held."""
        return len(set(self.held_blocks()))

    def held_blocks(self) -> Iterator[int]:
        """Each block as often as it is held here."""
        for _, blocks in self._entries:
            yield from blocks

    def add(self, token_ids: list[TokenId], prefix_cache: PrefixCache) -> int:
        """Publish a prefix that is stored under `PUBLISHED`; returns how many tokens of it, in whole blocks."""
        path = TokenPath(PUBLISHED)
        path.extend(token_ids)
        self.attach(path, len(token_ids) - 1)
        blocks = prefix_cache.match(path, len(token_ids) // self._block_size * self._block_size).blocks
        packed = bytes(path.packed[: len(blocks) * self._block_size * TOKEN_BYTES])
        if packed and all(known != packed for known, _ in self._entries):
            self._pool.acquire(blocks)
            self._entries.append((packed, blocks))
            self._entries.sort(key=lambda entry: -len(entry[0]))
        return len(blocks) * self._block_size

    def attach(self, path: TokenPath, limit: int) -> None:
        """Let a path begin behind the longest published prefix of its first `limit` tokens. Cost: O(prefixes)."""
        for packed, blocks in self._entries:
            if len(packed) <= limit * TOKEN_BYTES and path.packed.startswith(packed):
                framed = b"published" + hashlib.sha256(packed).digest() + path.namespace
                path.namespace = hashlib.sha256(framed).digest()
                path.base_blocks = blocks
                path.base = len(blocks) * self._block_size
                return
