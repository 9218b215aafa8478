"""Reads a `TokenizerSpec` from the metadata of a GGUF file. Nothing in it is trusted."""

import math
import re
import secrets
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from foreword.core.errors import ModelFormatError
from foreword.ops.cpu import cut_merges
from foreword.text.packed_texts import PackedTexts
from foreword.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from foreword.text.tokenizer_spec import (
    END_TOKEN_TEXTS,
    MAX_MERGES,
    MAX_TOKEN_CHARS,
    MAX_TOKENS,
    MAX_VOCABULARY_CHARS,
    SPECIAL_KINDS,
    Json,
    TokenizerSpec,
    TokenKind,
    ids_of,
    pack_merges,
    with_controls,
)

_PREFIX = "tokenizer.ggml."
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_MAX_MERGED_CHARS = 256  # longer tokens are not made by merging; SentencePiece trains none above 16 unless told to
_MERGEABLE = frozenset({TokenKind.NORMAL})


class _Fields:
    """Typed reading of metadata, with errors that name file and field."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self.metadata = metadata
        self.source = source

    def fault(self, field: str, detail: str) -> ModelFormatError:
        return ModelFormatError(self.source, _PREFIX + field, detail)

    def text(self, field: str) -> str | None:
        value = self.metadata.get(_PREFIX + field)
        if value is not None and not isinstance(value, str):
            raise self.fault(field, f"expected text, got {type(value).__name__}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        value = self.metadata.get(_PREFIX + field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(field, f"expected true or false, got {type(value).__name__}")
        return value

    def array(self, field: str, limit: int) -> Sequence[Any] | None:
        value = self.metadata.get(_PREFIX + field)
        if value is None:
            return None
        if isinstance(value, str | bytes) or not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
            raise self.fault(field, f"expected an array, got {type(value).__name__}")
        if len(value) > limit:
            raise self.fault(field, f"{len(value)} entries; at most {limit} are accepted")
        if hasattr(value, "tolist"):  # a NumPy array holds NumPy numbers
            value = value.tolist()
        return value  # type: ignore[no-any-return]

    def texts(self, field: str, limit: int) -> list[str] | None:
        values = self.array(field, limit)
        if values is None:
            return None
        if set(map(type, values)) - {str}:
            index = next(i for i, value in enumerate(values) if type(value) is not str)
            raise self.fault(f"{field}[{index}]", f"expected text, got {type(values[index]).__name__}")
        return list(values)

    def token_id(self, field: str, num_tokens: int) -> int | None:
        value = self.metadata.get(_PREFIX + field)
        if value is None:
            return None
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise self.fault(field, f"expected a token id, got {type(value).__name__}")
        token_id = int(value)
        if not 0 <= token_id < num_tokens:
            raise self.fault(field, f"token id {token_id} outside 0..{num_tokens - 1}")
        return token_id


def spec_from_gguf(metadata: Mapping[str, Any], source: str) -> TokenizerSpec:
    """The tokenizer a GGUF file describes.

    Raises:
        ModelFormatError: a field is missing, malformed, or names a kind of tokenizer that isn't supported.
    """
    fields = _Fields(metadata, source)
    model = fields.text("model")
    if model not in ("gpt2", "llama"):
        detail = f"{model!r} isn't supported; supported: 'gpt2' (byte-level), 'llama' (SentencePiece)"
        raise fields.fault("model", detail)
    tokens = fields.texts("tokens", MAX_TOKENS)
    if not tokens:
        raise fields.fault("tokens", "no vocabulary")
    longest, total = max(map(len, tokens)), sum(map(len, tokens))
    if longest > MAX_TOKEN_CHARS or total > MAX_VOCABULARY_CHARS:
        limits = f"at most {MAX_TOKEN_CHARS} in one token and {MAX_VOCABULARY_CHARS} in all are accepted"
        raise fields.fault("tokens", f"{longest} characters in one token, {total} in all; {limits}")
    kinds = with_controls(tokens, _kinds(fields, len(tokens)))
    return _byte_level(fields, tokens, kinds) if model == "gpt2" else _sentencepiece(fields, tokens, kinds)


def _kinds(fields: _Fields, num_tokens: int) -> bytes:
    values = fields.array("token_type", MAX_TOKENS)
    if values is None:
        return bytes([TokenKind.NORMAL]) * num_tokens
    if len(values) != num_tokens:
        raise fields.fault("token_type", f"{len(values)} entries for {num_tokens} tokens")
    largest = int(max(TokenKind))
    if set(map(type, values)) - {int} or not 0 <= min(values) <= max(values) <= largest:
        raise fields.fault("token_type", f"expected numbers from 0 to {largest}")
    return bytes(values).replace(b"\0", bytes([TokenKind.NORMAL]))


def _byte_level(fields: _Fields, tokens: list[str], kinds: bytes) -> TokenizerSpec:
    name = fields.text("pre") or "default"
    pre_tokenizer = PRE_TOKENIZERS.get(name)
    if pre_tokenizer is None:
        raise fields.fault("pre", f"pre-tokenizer {name!r} isn't supported; supported: {', '.join(PRE_TOKENIZERS)}")
    lines = fields.texts("merges", MAX_MERGES)
    if lines is None:
        raise fields.fault("merges", "missing")
    pipeline: Json = {"normalizer": None, "pre_tokenizer": pre_tokenizer.chain}
    return TokenizerSpec(
        source=fields.source,
        tokens=tokens,
        kinds=kinds,
        merges=_listed_merges(fields, lines, tokens, kinds),
        byte_level=True,
        first=pipeline,
        inner=pipeline,
        has_known_pipelines=True,
        ignore_merges=pre_tokenizer.ignore_merges,
        **_special_ids(fields, tokens, kinds, pre_tokenizer),
    )


def _listed_merges(fields: _Fields, lines: list[str], tokens: list[str], kinds: bytes) -> PackedTexts:
    """Merges in the file's order, without those that would make a token that text may not make."""
    cut = _cut_together(tokens, kinds, lines)
    if cut is not None:
        return cut
    every = set(tokens)
    plain = every - {tokens[i] for i in ids_of(kinds, SPECIAL_KINDS)}
    pairs = [line.partition(" ")[::2] for line in lines]
    for index, (left, right) in enumerate(pairs):
        for part in (left, right, left + right):
            if part not in every:
                raise fields.fault(f"merges[{index}]", f"token {part[:40]!r} isn't in the vocabulary")
    return pack_merges((left, right) for left, right in pairs if {left, right, left + right} <= plain)


def _cut_together(tokens: list[str], kinds: bytes, lines: list[str]) -> PackedTexts | None:
    """All merges, where each is made of plain tokens and there is nothing to leave out or to complain of.

    There are 50,000 at every start, which Python takes fifteen times as long for.
    """
    is_plain = bytes(kind not in SPECIAL_KINDS for kind in range(256))
    try:
        texts = ["\0".join(texts).encode() for texts in (tokens, lines)]
    except UnicodeEncodeError:  # a lone surrogate
        return None
    if texts[1].count(b"\0") != len(lines) - 1:  # a line with a zero byte, or no line
        return None
    cut = cut_merges(texts[0], kinds.translate(is_plain), texts[1], secrets.randbits(60))
    return None if cut is None else PackedTexts(array("Q", cut[0].tobytes()), cut[1])


def _sentencepiece(fields: _Fields, tokens: list[str], kinds: bytes) -> TokenizerSpec:
    scores = fields.array("scores", MAX_TOKENS)
    if scores is None or len(scores) != len(tokens):
        raise fields.fault("scores", f"expected one score for each of {len(tokens)} tokens")
    if not all(isinstance(score, float | int) and math.isfinite(score) for score in scores):
        raise fields.fault("scores", "expected finite numbers")
    byte_fallback = _check_byte_tokens(fields, tokens, kinds)
    add_space = fields.flag("add_space_prefix", True)
    spaces: Json = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prefix: Json = {"type": "Prepend", "prepend": "▁"}
    inner: Json = {"normalizer": spaces, "pre_tokenizer": None}
    first: Json = {"normalizer": {"type": "Sequence", "normalizers": [prefix, spaces]}, "pre_tokenizer": None}
    return TokenizerSpec(
        source=fields.source,
        tokens=tokens,
        kinds=kinds,
        merges=_scored_merges(tokens, kinds, scores),
        byte_level=False,
        first=first if add_space else inner,
        inner=inner,
        has_known_pipelines=True,
        prefix_rule="after_special",
        strip_leading_space=add_space,
        byte_fallback=byte_fallback,
        **_special_ids(fields, tokens, kinds, None),
    )


def _check_byte_tokens(fields: _Fields, tokens: list[str], kinds: bytes) -> bool:
    """True if every byte has a token of its own."""
    found = set()
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind != TokenKind.BYTE:
            continue
        if not _BYTE_TOKEN.fullmatch(token):
            raise fields.fault(f"tokens[{index}]", f"byte token {token[:40]!r} isn't of the form <0x41>")
        found.add(int(token[3:5], 16))
    return len(found) == 256


def _scored_merges(tokens: list[str], kinds: bytes, scores: Sequence[float]) -> PackedTexts:
    """SentencePiece joins the pair whose result scores best; as ranked merges, the best result comes first.

    Cost: every way to cut every token in two.
    """
    mergeable = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind in _MERGEABLE}
    ranked = []
    for token, index in mergeable.items():
        for middle in range(1, min(len(token), _MAX_MERGED_CHARS)):
            left, right = token[:middle], token[middle:]
            if left in mergeable and right in mergeable:
                ranked.append((-scores[index], index, left, right))
    ranked.sort()
    return pack_merges((left, right) for _, _, left, right in ranked)


def _special_ids(
    fields: _Fields, tokens: list[str], kinds: bytes, pre_tokenizer: PreTokenizer | None
) -> dict[str, Any]:
    is_sentencepiece = pre_tokenizer is None
    count = len(tokens)
    ids = {name: fields.token_id(f"{name}_token_id", count) for name in ("bos", "eos", "unknown", "padding")}
    if is_sentencepiece:  # what SentencePiece itself takes when nothing is said
        for name, default in (("unknown", 0), ("bos", 1), ("eos", 2)):
            if ids[name] is None and default < count and kinds[default] in SPECIAL_KINDS:
                ids[name] = default
    add_bos = fields.flag("add_bos_token", is_sentencepiece or (pre_tokenizer is not None and pre_tokenizer.add_bos))
    add_eos = fields.flag("add_eos_token", False)
    if add_bos and ids["bos"] is None and fields.metadata.get(_PREFIX + "add_bos_token"):
        raise fields.fault("bos_token_id", "missing, though add_bos_token is true")
    if add_eos and ids["eos"] is None:
        raise fields.fault("eos_token_id", "missing, though add_eos_token is true")
    ends = [ids["eos"], *(fields.token_id(f"{name}_token_id", count) for name in ("eot", "eom"))]
    return {
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "unk_token_id": ids["unknown"],
        "pad_token_id": ids["padding"],
        "end_token_ids": end_ids(tokens, kinds, ends),
        "prefix_ids": (ids["bos"],) if add_bos and ids["bos"] is not None else (),
        "suffix_ids": (ids["eos"],) if add_eos else (),
    }


def end_ids(tokens: list[str], kinds: bytes, stated: Iterable[int | None]) -> frozenset[int]:
    """Ids that end an answer: those a file states, and control tokens known to do so by their text."""
    known = [i for i in ids_of(kinds, (TokenKind.CONTROL,)) if tokens[i] in END_TOKEN_TEXTS]
    return frozenset(known) | {token_id for token_id in stated if token_id is not None}
