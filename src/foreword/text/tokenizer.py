"""Text to token ids and back, on the `tokenizers` library."""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from foreword.core.errors import InvalidRequestError, ModelFormatError
from foreword.core.types import are_token_ids
from foreword.text.encoder import Encoder
from foreword.text.gguf_tokenizer import spec_from_gguf
from foreword.text.json_tokenizer import spec_from_json
from foreword.text.packed_texts import framed_digest, pack_texts
from foreword.text.tokenizer_spec import (
    ATOM_KINDS,
    MAX_ATOM_CHARS,
    MAX_ATOMS_CHARS,
    SPECIAL_KINDS,
    MatchFlags,
    TokenizerSpec,
    TokenKind,
    ids_of,
)


class SpecialMatch(NamedTuple):
    """A token written out in text: `text[start:stop]` stands for `token_id`."""

    start: int
    stop: int
    token_id: int


class Tokenizer:
    """A vocabulary and the rules that cut text into it.

    Special tokens (control, unknown, unused) are not part of the library's model at all: its vocabulary holds only
    what text may become, so no text can make a special id unless the caller asks for `parse_special`.
    Safe to use from several threads.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self._spec = spec
        self.special_token_ids = frozenset(ids_of(spec.kinds, SPECIAL_KINDS))
        """Control, unknown and unused tokens."""
        self._encoder = Encoder(spec)
        atoms = {spec.tokens[i]: i for i in ids_of(spec.kinds, ATOM_KINDS) if spec.tokens[i]}
        _check_atoms(spec.source, atoms)
        self._atom_ids = atoms
        self._user_pattern = _alternatives(text for text, i in atoms.items() if i not in self.special_token_ids)
        self._atom_pattern = _alternatives(atoms)
        self._bytes: list[bytes | None] = [None] * len(spec.tokens)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], *, source: str = "GGUF metadata") -> "Tokenizer":
        """The tokenizer described by a GGUF file's metadata; `source` names the file in errors.

        Raises:
            ModelFormatError: the metadata is malformed or of an unsupported kind.
        """
        return cls(spec_from_gguf(metadata, source))

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        tokenizer_config: str | Path | None = None,
        generation_config: str | Path | None = None,
    ) -> "Tokenizer":
        """The tokenizer in a `tokenizer.json`, with the ids and flags of a `tokenizer_config.json` where one is given.

        `generation_config` names a file whose `eos_token_id` end an answer too.

        Raises:
            ModelFormatError: a file is missing, too large, malformed or of an unsupported kind.
        """
        config = None if tokenizer_config is None else Path(tokenizer_config)
        return cls(spec_from_json(Path(path), config, None if generation_config is None else Path(generation_config)))

    @property
    def vocab_size(self) -> int:
        """Number of token ids, holes included."""
        return len(self._spec.tokens)

    @property
    def bos_token_id(self) -> int | None:
        """Token that begins a text, if the model has one."""
        return self._spec.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """Token that ends a text, if the model names one."""
        return self._spec.eos_token_id

    @property
    def unk_token_id(self) -> int | None:
        """Token for text the vocabulary can't spell, if there is one."""
        return self._spec.unk_token_id

    @property
    def pad_token_id(self) -> int | None:
        """Token that fills up a batch, if the model names one."""
        return self._spec.pad_token_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every token that ends an answer: end of text, of turn, of message."""
        return self._spec.end_token_ids

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text -> id of the tokens that only a template or `parse_special` may write."""
        return {text: i for text, i in self._atom_ids.items() if i in self.special_token_ids}

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """Tokens put before every text that is encoded with `add_special_tokens`."""
        return tuple(self._spec.prefix_ids)

    @cached_property
    def longest_token_bytes(self) -> int:
        """Most bytes that one token stands for. Computed once, in about 50 ms for 50,000 tokens."""
        return max(len(self.token_bytes(token)) for token in range(self.vocab_size))

    @property
    def adds_leading_space(self) -> bool:
        """True if a text is spelled with a space before it that decoding takes away again."""
        return self._spec.strip_leading_space

    def is_special(self, token_id: int) -> bool:
        """True for control, unknown and unused tokens."""
        return self._check_id(token_id) in self.special_token_ids

    def token_text(self, token_id: int) -> str:
        """A token as the vocabulary writes it."""
        return self._spec.tokens[self._check_id(token_id)]

    def token_id(self, text: str) -> int | None:
        """Id of the special or user-defined token written `text`."""
        return self._atom_ids.get(text)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; half a character is possible."""
        token_id = self._check_id(token_id)
        found = self._bytes[token_id]
        if found is None:
            found = self._bytes[token_id] = self._spell(token_id)
        return found

    def spell(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that tokens stand for, special ones included.

        Raises:
            InvalidRequestError: an id is not an integer or not in the vocabulary.
        """
        self._check_ids(token_ids)
        try:
            return b"".join([self._bytes[token_id] for token_id in token_ids])  # type: ignore[misc]
        except TypeError:  # None: one that was not met before
            return b"".join([self.token_bytes(token_id) for token_id in token_ids])

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text.
            add_special_tokens: put the beginning-of-text and end-of-text tokens where the model wants them.
            parse_special: special tokens written out in `text` become their ids. Only for text that is trusted.

        Raises:
            InvalidRequestError: not text, or text with a lone surrogate.
        """
        if not isinstance(text, str):
            raise InvalidRequestError("text", "text", text)
        cuts = self.find_special(text) if parse_special else ()
        ids = self.encode_around(text, cuts)
        return [*self._spec.prefix_ids, *ids, *self._spec.suffix_ids] if add_special_tokens else ids

    def find_special(self, text: str) -> list[SpecialMatch]:
        """Where special tokens are written out in a text; at any place the longest counts."""
        return [
            match
            for match in self._find_atoms(self._atom_pattern, text, 0, len(text))
            if match[2] in self.special_token_ids
        ]

    def encode_around(self, text: str, cuts: Sequence[SpecialMatch], *, start: int = 0) -> list[int]:
        """Token ids of a text in which only `cuts` are special tokens, whatever else is written in it.

        With `start`, of `text[start:]` as what follows other text: nothing begins there, so no space is put before it.
        """
        ids: list[int] = []
        position = start
        for begin, stop, token_id in cuts:
            self._encode_plain(text, position, begin, ids, follows_text=position == start > 0)
            ids.append(token_id)
            position = stop
        self._encode_plain(text, position, len(text), ids, follows_text=position == start > 0)
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that aren't UTF-8 become U+FFFD.

        Raises:
            InvalidRequestError: an id is not an integer or not in the vocabulary.
        """
        if skip_special_tokens:
            self._check_ids(token_ids)  # before any is left out: True is 1
            token_ids = [token_id for token_id in token_ids if token_id not in self.special_token_ids]
        data = self.spell(token_ids)
        if self._spec.strip_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything that decides tokenisation. Computed once, in about 10 ms for 50,000 tokens."""
        spec = self._spec
        rules = {
            "byte_level": spec.byte_level,
            "first": spec.first,
            "inner": spec.inner,
            "prefix_rule": spec.prefix_rule,
            "strip_leading_space": spec.strip_leading_space,
            "ignore_merges": spec.ignore_merges,
            "fuse_unknown": spec.fuse_unknown,
            "byte_fallback": spec.byte_fallback,
            "unknown": spec.unk_token_id,
            "prefix": spec.prefix_ids,
            "suffix": spec.suffix_ids,
            "flags": sorted((i, f.lstrip, f.rstrip, f.single_word) for i, f in spec.flags.items()),
        }
        return framed_digest(
            ("tokens", pack_texts(spec.tokens)),
            ("kinds", pack_texts([spec.kinds.decode("latin-1")])),
            ("merges", spec.merges),
            ("rules", pack_texts([json.dumps(rules, sort_keys=True)])),
        )

    def _check_id(self, token_id: int) -> int:
        if type(token_id) is not int or not 0 <= token_id < len(self._spec.tokens):
            raise InvalidRequestError("token_id", f"an integer from 0 to {len(self._spec.tokens) - 1}", token_id)
        return token_id

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        if not are_token_ids(token_ids, len(self._spec.tokens)):
            for token_id in token_ids:
                self._check_id(token_id)

    def _spell(self, token_id: int) -> bytes:
        token, kind = self._spec.tokens[token_id], self._spec.kinds[token_id]
        if kind == TokenKind.BYTE:
            return bytes([int(token[3:5], 16)])
        if kind == TokenKind.NORMAL and self._spec.byte_level:
            try:
                return bytes([BYTE_OF_CHARACTER[character] for character in token])
            except KeyError:  # written as it reads, as some converters do
                return token.encode("utf-8", "replace")
        if kind == TokenKind.NORMAL:
            token = token.replace("▁", " ")
        return token.encode("utf-8", "replace")

    def _encode_plain(self, text: str, start: int, stop: int, ids: list[int], *, follows_text: bool = False) -> None:
        """Append the ids of `text[start:stop]`, in which nothing is special."""
        position, after_special = start, not follows_text
        for match in self._find_atoms(self._user_pattern, text, start, stop):
            self._encode_stretch(text[position : match.start], position, after_special, ids)
            ids.append(match.token_id)
            position, after_special = match.stop, False
        self._encode_stretch(text[position:stop], position, after_special, ids)

    def _encode_stretch(self, text: str, position: int, after_special: bool, ids: list[int]) -> None:
        if not text:
            return
        rule = self._spec.prefix_rule
        takes_prefix = rule == "every" or position == 0 or (rule == "after_special" and after_special)
        ids += self._encoder.encode(text, takes_prefix=takes_prefix)

    def _find_atoms(self, pattern: re.Pattern[str] | None, text: str, start: int, stop: int) -> Iterable[SpecialMatch]:
        if pattern is None:
            return
        floor = start
        for found in pattern.finditer(text, start, stop):
            token_id = self._atom_ids[found.group()]
            match = _widen(text, SpecialMatch(*found.span(), token_id), self._spec.flags.get(token_id), floor, stop)
            if match is not None:
                floor = match.stop
                yield match


def _widen(text: str, match: SpecialMatch, flags: MatchFlags | None, floor: int, ceiling: int) -> SpecialMatch | None:
    """A match with the white space it takes, or None where it doesn't count. `floor` is where the last one ended."""
    start, stop, token_id = match
    if start < floor:
        return None
    if flags is None:
        return match
    if flags.single_word and ((start > 0 and _is_word(text[start - 1])) or (stop < len(text) and _is_word(text[stop]))):
        return None
    while flags.lstrip and start > floor and _is_space(text[start - 1]):
        start -= 1
    while flags.rstrip and stop < ceiling and _is_space(text[stop]):
        stop += 1
    return SpecialMatch(start, stop, token_id)


def _is_word(character: str) -> bool:
    r"""As `\w` in the library's patterns; `str.isalnum` takes more signs for digits."""
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or character in "\u200c\u200d"


def _is_space(character: str) -> bool:
    r"""As `\s` in the library's patterns; Python counts four control characters more."""
    return character.isspace() and character not in "\x1c\x1d\x1e\x1f"


def _check_atoms(source: str, texts: Iterable[str]) -> None:
    """Patterns are built of these texts, so there is a limit to them."""
    lengths = list(map(len, texts))
    if max(lengths, default=0) > MAX_ATOM_CHARS or sum(lengths) > MAX_ATOMS_CHARS:
        limits = f"at most {MAX_ATOM_CHARS} in one and {MAX_ATOMS_CHARS} in all are accepted"
        raise ModelFormatError(source, "special tokens", f"{sum(lengths)} characters in {len(lengths)}; {limits}")


def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2 spells bytes that print as themselves and the other 68 as characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER: Mapping[str, int] = _byte_alphabet()
"""Character of GPT-2's byte alphabet -> byte."""
