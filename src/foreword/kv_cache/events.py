"""What became findable and what ceased to be, as a stream: a mirror built from it equals the index at all times.

Names of events and fields follow vLLM's, so that its consumers understand them.
"""

from array import array
from collections import deque

from msgspec import Struct

from foreword.core.types import TokenId
from foreword.kv_cache.block_hash import extend_hashes
from foreword.kv_cache.prefix_cache import TOKEN_BYTES, BlockHash, TokenPath


class BlockStored(Struct, frozen=True):
    """Whole blocks of a namespace became findable, one after the other behind `parent_block_hash`.

    That is None for the first blocks of a prefix.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[TokenId, ...]
    block_size: int
    namespace: bytes


class BlockRemoved(Struct, frozen=True):
    """The last findable copy of each block is gone."""

    block_hashes: tuple[BlockHash, ...]


class AllBlocksCleared(Struct, frozen=True):
    """Nothing is findable any more."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


def stored_event(path: TokenPath, first: int, end: int, block_size: int) -> BlockStored:
    """The event for whole blocks `[first, end)` of a path."""
    hashes = extend_hashes(path, end, block_size)
    size = block_size * TOKEN_BYTES
    tokens = array("i", bytes(path.packed[first * size : end * size]))
    parent = hashes[first - 1] if first else None
    return BlockStored(tuple(hashes[first:end]), parent, tuple(map(TokenId, tokens)), block_size, path.namespace)


class EventLog:
    """Events in order, numbered from 0. When nobody takes them, the oldest are dropped and the numbers show a gap."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._events: deque[CacheEvent] = deque(maxlen=capacity)
        self._next_number = 0

    def append(self, event: CacheEvent) -> None:
        """Add one event."""
        self._events.append(event)
        self._next_number += 1

    def take(self) -> list[tuple[int, CacheEvent]]:
        """All events kept since the last call, with their numbers."""
        first = self._next_number - len(self._events)
        taken = [(first + offset, event) for offset, event in enumerate(self._events)]
        self._events.clear()
        return taken
