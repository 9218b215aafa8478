"""Many short texts held as two pieces of memory, an eighth of what as many strings take, and hashed as they are."""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple


class PackedTexts(NamedTuple):
    """A list of texts that is seldom looked at."""

    lengths: "array[int]"  # in characters
    joined: bytes  # UTF-8, lone surrogates too


def pack_texts(texts: Sequence[str]) -> PackedTexts:
    """The texts, packed."""
    return PackedTexts(array("Q", map(len, texts)), "".join(texts).encode("utf-8", "surrogatepass"))


def unpack_texts(packed: PackedTexts) -> list[str]:
    """The texts, as they were."""
    joined = packed.joined.decode("utf-8", "surrogatepass")
    ends = list(accumulate(packed.lengths, initial=0))
    return [joined[start:stop] for start, stop in pairwise(ends)]


def framed_digest(*parts: tuple[str, PackedTexts]) -> bytes:
    """SHA-256 over tagged parts, each its texts' lengths and then the texts, so no two lists read alike."""
    digest = hashlib.sha256(b"foreword tokenizer 2")
    for tag, (lengths, joined) in parts:
        if sys.byteorder == "big":
            lengths = array("Q", lengths)
            lengths.byteswap()
        for piece in (tag.encode(), lengths.tobytes(), joined):
            digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.digest()
