"""What decides a tokenizer, as plain data, whichever kind of file it came from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, Literal

from msgspec import Struct, field

from foreword.text.packed_texts import PackedTexts, pack_texts, unpack_texts

MAX_TOKENS = 1 << 21
MAX_MERGES = 1 << 22
MAX_TOKEN_CHARS = 1 << 16
MAX_VOCABULARY_CHARS = 1 << 24
MAX_ATOM_CHARS = 512  # of one special or user-defined token
MAX_ATOMS_CHARS = 1 << 18  # of all of them

Json = dict[str, Any]
"""One component of the `tokenizers` library in the form its own files use."""

PrefixRule = Literal["first", "after_special", "every"]


class TokenKind(IntEnum):
    """What a token is for; the numbers are those of GGUF's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4  # text that is always kept whole
    UNUSED = 5
    BYTE = 6


SPECIAL_KINDS = frozenset(map(int, (TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.UNUSED)))
"""Kinds of token that no text becomes by itself."""

ATOM_KINDS = frozenset(map(int, (TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.USER_DEFINED)))
"""Kinds of token that are recognised by their whole text."""

END_TOKEN_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|eot|>",
        "<|EOT|>",
        "<|END_OF_TURN_TOKEN|>",
        "<end_of_turn>",
        "<EOT>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Control tokens known to end a turn or a text, whether or not a file lists them among its end tokens."""

_CONTROL_TEXT = re.compile(r"<\|.+\|>|<｜.+｜>|</?s>|<(?:bos|eos|pad|start_of_turn|end_of_turn)>")


class MatchFlags(Struct, frozen=True):
    """How a token written out in text is found: whether it takes white space beside it, whether it must stand alone."""

    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class TokenizerSpec(Struct, frozen=True, kw_only=True):
    """Everything that decides tokenisation.

    `tokens[i]` is the text of token `i`, in the byte alphabet of GPT-2 where `byte_level`, with `▁` for a space where
    not; an id nothing maps to holds "". `first` and `inner` are the normaliser and pre-tokeniser for a stretch of text
    that takes the leading space and for one that doesn't; `prefix_rule` says which stretches take it.
    """

    source: str
    tokens: list[str]
    kinds: bytes
    merges: PackedTexts  # left, right, left, right, …
    byte_level: bool
    first: Json
    inner: Json
    has_known_pipelines: bool = False  # ours, not a file's: nothing in them is left to check
    prefix_rule: PrefixRule = "every"
    strip_leading_space: bool = False
    ignore_merges: bool = False
    fuse_unknown: bool = True
    byte_fallback: bool = False
    flags: Mapping[int, MatchFlags] = field(default_factory=dict)
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    unk_token_id: int | None = None
    pad_token_id: int | None = None
    end_token_ids: frozenset[int] = frozenset()
    prefix_ids: tuple[int, ...] = ()  # put before a text when special tokens are asked for
    suffix_ids: tuple[int, ...] = ()


def as_pairs(merges: PackedTexts) -> list[tuple[str, str]]:
    """A spec's merges as `(left, right)`."""
    parts = unpack_texts(merges)
    return list(zip(parts[::2], parts[1::2], strict=True))


def pack_merges(pairs: Iterable[tuple[str, str]]) -> PackedTexts:
    """Merges as a spec holds them."""
    return pack_texts(list(chain.from_iterable(pairs)))


def ids_of(kinds: bytes, wanted: Iterable[int]) -> list[int]:
    """Ids of all tokens of some kinds, ascending; found in native code, as starts look for them six times."""
    return [found.start() for found in re.finditer(b"[" + re.escape(bytes(sorted(wanted))) + b"]", kinds)]


def with_controls(tokens: Sequence[str], kinds: bytes) -> bytes:
    """Kinds in which user-defined tokens that read like control tokens are control tokens.

    Some files have `<|im_start|>` as a mere user-defined token; taken at their word, any text could begin a turn.
    """
    corrected = bytearray(kinds)
    for i in ids_of(kinds, (TokenKind.USER_DEFINED,)):
        if _CONTROL_TEXT.fullmatch(tokens[i]) or tokens[i] in END_TOKEN_TEXTS:
            corrected[i] = TokenKind.CONTROL
    return bytes(corrected)
