"""One identity for every place K and V are kept: memory, disk, remote tiers, events.

    root = SHA-256(tagged, length-framed fields of CacheIdentity)          32 bytes
    h_-1 = SHA-256(tag "root", root, tag "namespace", namespace)
    h_i  = SHA-256(h_{i-1}, tag "block", token ids as little-endian int32, media digests with their offsets)

Every field is written as tag, length, bytes; an absent field is not written at all. So no two different identities
give the same bytes: not a salt that spells an adapter's name, not an empty salt and none, not one block's tokens cut
at another place.
"""

import hashlib
import sys
from array import array

from msgspec import Struct

from foreword.kv_cache.prefix_cache import TOKEN_BYTES, BlockHash, TokenPath

LAYOUT_VERSION = 1
"""Raised whenever the bytes of a block come to mean something else."""


def _framed(tag: str, value: bytes | bytearray) -> bytes:
    name = tag.encode()
    return len(name).to_bytes(2, "little") + name + len(value).to_bytes(8, "little") + value


class CacheIdentity(Struct, frozen=True, kw_only=True):
    """Everything K and V depend on beside the tokens, and who may share them.

    Digests are of contents, never names: another adapter under the same name is another identity. The tenant domain
    is derived by the server from the authenticated key; `salt` is the caller's and can only narrow.
    """

    weights: bytes
    tokenizer: bytes
    attention: bytes  # digest of RoPE and attention parameters
    kv_dtype: str
    block_size: int
    instruction_set: str
    adapter: bytes | None = None
    tenant: bytes | None = None
    salt: bytes | None = None

    def root(self) -> bytes:
        """What the hash chains of these settings start from: 32 bytes."""
        fields: tuple[tuple[str, bytes | None], ...] = (
            ("format", b"foreword-kv"),
            ("layout_version", LAYOUT_VERSION.to_bytes(4, "little")),
            ("weights", self.weights),
            ("tokenizer", self.tokenizer),
            ("attention", self.attention),
            ("kv_dtype", self.kv_dtype.encode()),
            ("block_size", self.block_size.to_bytes(4, "little")),
            ("instruction_set", self.instruction_set.encode()),
            ("adapter", self.adapter),
            ("tenant", self.tenant),
            ("salt", self.salt),
        )
        return hashlib.sha256(b"".join(_framed(tag, value) for tag, value in fields if value is not None)).digest()


def namespace_hash(namespace: bytes, root: bytes = b"") -> BlockHash:
    """The hash before the first block of a namespace. An engine whose hashes stay inside it needs no root."""
    framed = _framed("root", root) if root else b""
    return BlockHash(hashlib.sha256(framed + _framed("namespace", namespace)).digest())


def block_hash(parent: BlockHash, packed_tokens: bytes, media: tuple[tuple[int, bytes], ...] = ()) -> BlockHash:
    """Hash of one whole block: `packed_tokens` are native int32, `media` are offsets in the block with digests."""
    framed = [parent, _framed("block", _little_endian(packed_tokens))]
    framed.extend(_framed("media", offset.to_bytes(4, "little") + digest) for offset, digest in media)
    return BlockHash(hashlib.sha256(b"".join(framed)).digest())


def chain_hashes(
    parent: BlockHash, packed: bytes | bytearray, first: int, end: int, block_size: int
) -> list[BlockHash]:
    """Hashes of whole blocks `[first, end)` of packed tokens, the first of them behind `parent`. Cost: O(blocks)."""
    size = block_size * TOKEN_BYTES
    head = _framed("block", bytes(size))[:-size]  # the same for every whole block
    sha256 = hashlib.sha256
    hashes: list[BlockHash] = []
    for start in range(first * size, end * size, size):
        parent = BlockHash(sha256(parent + head + _little_endian(packed[start : start + size])).digest())
        hashes.append(parent)
    return hashes


def extend_hashes(path: TokenPath, num_blocks: int, block_size: int) -> list[BlockHash]:
    """Chained hashes of at least the first `num_blocks` whole blocks, kept with the path.

    Cost: O(blocks not hashed yet).
    """
    hashes = path.hashes
    parent = hashes[-1] if hashes else namespace_hash(path.namespace, path.root)
    hashes.extend(chain_hashes(parent, path.packed, len(hashes), num_blocks, block_size))
    return hashes


def _little_endian(packed: bytes | bytearray) -> bytes | bytearray:
    if sys.byteorder == "little":
        return packed
    swapped = array("i", bytes(packed))
    swapped.byteswap()
    return swapped.tobytes()
