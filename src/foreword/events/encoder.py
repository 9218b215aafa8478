"""KV events as bytes that vLLM's consumers read.

    batch   array [ts, [events], data_parallel_rank]
    event   map   {"type": "BlockStored", "block_hashes": [...], ...}      vLLM 0.33, SGLang
            array ["BlockStored", block_hashes, ...]                       older consumers

The fields up to `lora_name` are always there, possibly nil; `extra_keys` only where there are some.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from foreword.events.options import EventForm
from foreword.kv_cache.events import AllBlocksCleared, BlockRemoved, CacheEvent
from foreword.kv_cache.prefix_cache import BlockHash

WireHash = bytes | int
MEDIUM = "CPU"

_INT_HASH_BYTES = 8


def domain_key(namespace: bytes) -> str:
    """What a namespace is called in `extra_keys`.

    A digest and not the namespace: salted namespaces are derived from their tenant's, so whoever knew that one could
    try out salts. The prefix keeps consumers from taking it for the digest of a picture.
    """
    return f"domain:{hashlib.sha256(b'foreword event domain' + namespace).hexdigest()[:32]}"


class EventEncoder:
    """Encodes batches of events.

    Blocks of `open_namespace` carry no extra key: whoever knows their tokens can compute what stands for them. The
    first block of any other namespace carries `domain_key`, as vLLM's does a salt; those behind it are told apart by
    their parent.
    """

    def __init__(
        self,
        form: EventForm = "map",
        *,
        int_hashes: bool = False,
        open_namespace: bytes = b"",
        data_parallel_rank: int = 0,
    ) -> None:
        self._form = form
        self._int_hashes = int_hashes
        self._open_namespace = open_namespace
        self._rank = data_parallel_rank
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, timestamp: float, events: Iterable[CacheEvent]) -> bytes:
        """One batch; `timestamp` in seconds since the epoch."""
        return self._encoder.encode((timestamp, [self._on_wire(event) for event in events], self._rank))

    def _on_wire(self, event: CacheEvent) -> dict[str, object] | list[object]:
        fields = self._fields(event)
        return fields if self._form == "map" else list(fields.values())

    def _fields(self, event: CacheEvent) -> dict[str, object]:
        """Names and values in the order of the contract, which the array form goes by."""
        if isinstance(event, AllBlocksCleared):
            return {"type": "AllBlocksCleared"}
        if isinstance(event, BlockRemoved):
            return {"type": "BlockRemoved", "block_hashes": self._hashes(event.block_hashes), "medium": MEDIUM}
        fields: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": self._hashes(event.block_hashes),
            "parent_block_hash": None if event.parent_block_hash is None else self._hash(event.parent_block_hash),
            "token_ids": event.token_ids,
            "block_size": event.block_size,
            "lora_id": None,
            "medium": MEDIUM,
            "lora_name": None,
        }
        if event.parent_block_hash is None and event.namespace != self._open_namespace:
            fields["extra_keys"] = [[domain_key(event.namespace)], *[None] * (len(event.block_hashes) - 1)]
        return fields

    def _hashes(self, hashes: Iterable[BlockHash]) -> list[WireHash]:
        return [self._hash(block_hash) for block_hash in hashes]

    def _hash(self, block_hash: BlockHash) -> WireHash:
        return int.from_bytes(block_hash[-_INT_HASH_BYTES:], "big") if self._int_hashes else block_hash
