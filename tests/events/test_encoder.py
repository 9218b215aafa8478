"""KV events on the wire: the bytes, what independent readers make of them, and what is never in them."""

import msgspec
import pytest

from foreword.core.types import TokenId
from foreword.events.encoder import EventEncoder, domain_key
from foreword.kv_cache.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from foreword.kv_cache.prefix_cache import BlockHash
from tests.events import wire_types

A, B, C = (BlockHash(bytes([value]) * 32) for value in (0xA1, 0xB2, 0xC3))


def stored(hashes: tuple[BlockHash, ...], parent: BlockHash | None, namespace: bytes = b"") -> BlockStored:
    return BlockStored(hashes, parent, tuple(TokenId(300 + i) for i in range(2 * len(hashes))), 2, namespace)


EVENTS: list[CacheEvent] = [stored((A, B), None), stored((C,), B), BlockRemoved((C, B)), AllBlocksCleared()]


def text(value: str) -> str:
    return f"{0xA0 + len(value):02x}{value.encode().hex()}"


def bin32(value: bytes) -> str:
    return f"c420{value.hex()}"


def test_the_bytes_are_those_of_the_contract() -> None:
    wanted = (
        "93"  # an array of three
        "cb3ff8000000000000"  # 1.5
        "94"  # four events
        "88" + text("type") + text("BlockStored")
        + text("block_hashes") + "92" + bin32(A) + bin32(B)
        + text("parent_block_hash") + "c0"
        + text("token_ids") + "94cd012ccd012dcd012ecd012f"
        + text("block_size") + "02"
        + text("lora_id") + "c0" + text("medium") + text("CPU") + text("lora_name") + "c0"
        + "88" + text("type") + text("BlockStored")
        + text("block_hashes") + "91" + bin32(C)
        + text("parent_block_hash") + bin32(B)
        + text("token_ids") + "92cd012ccd012d"
        + text("block_size") + "02"
        + text("lora_id") + "c0" + text("medium") + text("CPU") + text("lora_name") + "c0"
        + "83" + text("type") + text("BlockRemoved")
        + text("block_hashes") + "92" + bin32(C) + bin32(B)
        + text("medium") + text("CPU")
        + "81" + text("type") + text("AllBlocksCleared")
        + "00"  # data_parallel_rank
    )  # fmt: skip

    assert EventEncoder().encode(1.5, EVENTS).hex() == wanted


def test_an_independent_reader_finds_every_field() -> None:
    batch = msgspec.msgpack.decode(EventEncoder(data_parallel_rank=3).encode(2.5, EVENTS), type=wire_types.Batch)

    assert (batch.ts, batch.data_parallel_rank) == (2.5, 3)
    assert batch.events == [
        wire_types.BlockStored([A, B], None, [300, 301, 302, 303], 2, None, "CPU", None),
        wire_types.BlockStored([C], B, [300, 301], 2, None, "CPU", None),
        wire_types.BlockRemoved([C, B], "CPU"),
        wire_types.AllBlocksCleared(),
    ]


def test_an_older_reader_finds_tagged_arrays() -> None:
    payload = EventEncoder("array").encode(2.5, EVENTS)

    assert msgspec.msgpack.decode(payload) == [
        2.5,
        [
            ["BlockStored", [A, B], None, [300, 301, 302, 303], 2, None, "CPU", None],
            ["BlockStored", [C], B, [300, 301], 2, None, "CPU", None],
            ["BlockRemoved", [C, B], "CPU"],
            ["AllBlocksCleared"],
        ],
        0,
    ]
    batch = msgspec.msgpack.decode(payload, type=wire_types.OldBatch)
    assert batch.events[1] == wire_types.OldBlockStored([C], B, [300, 301], 2, None, "CPU", None)


@pytest.mark.parametrize("form", ["map", "array"])
def test_integer_hashes_are_the_low_64_bits(form: str) -> None:
    low = BlockHash(bytes(range(32)))
    high = BlockHash(b"\0" * 24 + b"\xff" * 8)

    payload = EventEncoder(form, int_hashes=True).encode(0.0, [stored((high,), low), BlockRemoved((low,))])  # type: ignore[arg-type]

    first, second = msgspec.msgpack.decode(payload)[1]
    hashes, parent = (first["block_hashes"], first["parent_block_hash"]) if form == "map" else first[1:3]
    removed = second["block_hashes"] if form == "map" else second[1]
    assert hashes == [2**64 - 1]
    assert [parent] == removed == [int.from_bytes(low, "big") % 2**64]


@pytest.mark.parametrize("form", ["map", "array"])
def test_the_first_block_of_a_tenant_carries_its_domain_and_nothing_carries_its_secret(form: str) -> None:
    secret = b"a tenant's salt"
    encoder = EventEncoder(form)  # type: ignore[arg-type]

    payload = encoder.encode(0.0, [stored((A, B), None, secret), stored((C,), B, secret)])

    first, second = msgspec.msgpack.decode(payload)[1]
    extra = first["extra_keys"] if form == "map" else first[8]
    assert extra == [[domain_key(secret)], None]
    assert "extra_keys" not in second if form == "map" else len(second) == 8
    assert secret not in payload
    assert secret.hex().encode() not in payload
    assert domain_key(secret) != domain_key(b"another")
    assert len(domain_key(secret)) != 64  # or consumers would take it for the digest of a picture


def test_the_open_namespace_carries_no_mark() -> None:
    payload = EventEncoder(open_namespace=b"all").encode(0.0, [stored((A,), None, b"all"), stored((B,), None)])

    first, second = msgspec.msgpack.decode(payload, type=wire_types.Batch).events
    assert isinstance(first, wire_types.BlockStored)
    assert isinstance(second, wire_types.BlockStored)
    assert first.extra_keys is None
    assert second.extra_keys == [(domain_key(b""),)]
