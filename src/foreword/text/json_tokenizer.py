"""Reads a `TokenizerSpec` from a `tokenizer.json`, and the flags beside it. Nothing in it is trusted."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from foreword.core.errors import ModelFormatError, shorten
from foreword.text.gguf_tokenizer import end_ids
from foreword.text.packed_texts import PackedTexts
from foreword.text.regex_guard import pattern_fault
from foreword.text.tokenizer_spec import (
    MAX_MERGES,
    MAX_TOKEN_CHARS,
    MAX_TOKENS,
    Json,
    MatchFlags,
    PrefixRule,
    TokenizerSpec,
    TokenKind,
    pack_merges,
    with_controls,
)

MAX_TOKENIZER_BYTES = 64 << 20
MAX_CONFIG_BYTES = 4 << 20

_STEPS = frozenset(
    {"Sequence", "Split", "ByteLevel", "Digits", "Punctuation", "Metaspace", "Whitespace", "WhitespaceSplit"}
    | {"NFC", "NFD", "NFKC", "NFKD", "Replace", "Prepend", "Strip", "Lowercase"}
)


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes.

    Raises:
        ModelFormatError: the file is missing, larger, or not a JSON object.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(limit + 1) if size <= limit else b""
    except OSError as error:
        raise ModelFormatError(path, "file", error.strerror or "can't be read") from None
    if size > limit or len(data) > limit:
        raise ModelFormatError(path, "file", f"{max(size, len(data))} bytes; at most {limit} are accepted")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(path, "file", f"not JSON: {str(error)[:120]}") from None
    if not isinstance(document, dict):
        raise ModelFormatError(path, "file", f"expected a JSON object, got {type(document).__name__}")
    return document


def spec_from_json(path: Path, config_path: Path | None, generation_path: Path | None = None) -> TokenizerSpec:
    """The tokenizer a `tokenizer.json` describes; a `generation_config.json` may name more tokens that end an answer.

    Raises:
        ModelFormatError: a file or field is missing, malformed, too large or of an unsupported kind.
    """
    document = read_json(path, MAX_TOKENIZER_BYTES)
    config = {} if config_path is None else read_json(config_path, MAX_CONFIG_BYTES)
    spec = _JsonReader(path, document, config).spec()
    if generation_path is None:
        return spec
    return replace(spec, end_token_ids=spec.end_token_ids | _stated_ends(generation_path, len(spec.tokens)))


def _stated_ends(path: Path, num_tokens: int) -> frozenset[int]:
    """`eos_token_id` of a generation config, or of a model's config: none, one or several."""
    stated = read_json(path, MAX_CONFIG_BYTES).get("eos_token_id")
    listed = stated if isinstance(stated, list) else [] if stated is None else [stated]
    for token_id in listed:
        if type(token_id) is not int or not 0 <= token_id < num_tokens:
            expected = f"expected token ids from 0 to {num_tokens - 1}"
            raise ModelFormatError(path, "eos_token_id", f"{expected}, got {shorten(stated)}")
    return frozenset(listed)


class _JsonReader:
    """One `tokenizer.json` being read."""

    def __init__(self, path: Path, document: Json, config: Json) -> None:
        self.path = path
        self.document = document
        self.config = config

    def fault(self, field: str, detail: str) -> ModelFormatError:
        return ModelFormatError(self.path, field, detail)

    def part(self, field: str) -> Json:
        """A component: an object, or absent."""
        value = self.document.get(field)
        if value is not None and not isinstance(value, dict):
            raise self.fault(field, f"expected an object, got {type(value).__name__}")
        return value or {}

    def spec(self) -> TokenizerSpec:
        model = self.part("model")
        if model.get("type", "BPE") != "BPE":
            raise self.fault("model.type", f"{str(model.get('type'))[:40]!r} isn't supported; supported: 'BPE'")
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(name):
                raise self.fault(f"model.{name}", "isn't supported")
        for field in ("normalizer", "pre_tokenizer"):
            self._check_steps(field, self.part(field))
        added = self._added_tokens()
        tokens, kinds = self._tokens(self._vocabulary(model), added)
        steps = [*_walk(self.part("pre_tokenizer")), *_walk(self.part("decoder"))]
        is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
        first = {"normalizer": self.document.get("normalizer"), "pre_tokenizer": self.document.get("pre_tokenizer")}
        inner, rule = _without_first_prefix(first)
        ids = {text: i for i, text in enumerate(tokens) if text}
        return TokenizerSpec(
            source=str(self.path),
            tokens=tokens,
            kinds=bytes(kinds),
            merges=self._merges(model, ids, kinds),
            byte_level=is_byte_level,
            first=first,
            inner=inner,
            prefix_rule=rule,
            strip_leading_space=not is_byte_level and self._strips_leading_space(),
            ignore_merges=model.get("ignore_merges") is True,
            fuse_unknown=model.get("fuse_unk") is True,
            byte_fallback=model.get("byte_fallback") is True,
            flags={i: flags for i, (_, _, flags) in added.items() if flags != MatchFlags()},
            **self._special_ids(ids, tokens, kinds, model),
        )

    def _check_steps(self, field: str, component: Json) -> None:
        for step in _walk(component):
            if "type" in step and step["type"] not in _STEPS:
                raise self.fault(field, f"step {str(step['type'])[:40]!r} isn't supported")
            pattern = step.get("Regex")
            if pattern is not None:
                detail = pattern_fault(pattern) if isinstance(pattern, str) else "expected text"
                if detail:
                    raise self.fault(field, f"pattern refused: {detail}")

    def _vocabulary(self, model: Json) -> dict[str, int]:
        vocabulary = model.get("vocab")
        if not isinstance(vocabulary, dict) or not vocabulary:
            raise self.fault("model.vocab", "expected an object of tokens and their ids")
        if len(vocabulary) > MAX_TOKENS:
            raise self.fault("model.vocab", f"{len(vocabulary)} tokens; at most {MAX_TOKENS} are accepted")
        for token, token_id in vocabulary.items():
            if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS or len(token) > MAX_TOKEN_CHARS:
                raise self.fault("model.vocab", f"token {token[:40]!r} has no usable id: {str(token_id)[:40]}")
        return vocabulary

    def _added_tokens(self) -> dict[int, tuple[str, bool, MatchFlags]]:
        """Id -> text, whether special, how it is matched."""
        entries = self.document.get("added_tokens") or []
        if not isinstance(entries, list) or len(entries) > MAX_TOKENS:
            raise self.fault("added_tokens", f"expected a list of at most {MAX_TOKENS} tokens")
        added = {}
        for index, entry in enumerate(entries):
            token_id, text = (entry.get("id"), entry.get("content")) if isinstance(entry, dict) else (None, None)
            if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS or not isinstance(text, str) or not text:
                raise self.fault(f"added_tokens[{index}]", "expected an object with id and content")
            flags = MatchFlags(*(entry.get(name) is True for name in ("lstrip", "rstrip", "single_word")))
            added[token_id] = (text, entry.get("special") is True, flags)
        return added

    def _tokens(
        self, vocabulary: Mapping[str, int], added: Mapping[int, tuple[str, bool, MatchFlags]]
    ) -> tuple[list[str], bytearray]:
        count = 1 + max(max(vocabulary.values()), max(added, default=0))
        if count > 2 * (len(vocabulary) + len(added)) + 1024:
            raise self.fault("model.vocab", f"ids up to {count - 1} for {len(vocabulary) + len(added)} tokens")
        tokens = [""] * count
        kinds = bytearray([TokenKind.UNUSED]) * count
        for token, token_id in vocabulary.items():
            tokens[token_id] = token
            kinds[token_id] = TokenKind.BYTE if _is_byte_token(token) else TokenKind.NORMAL
        for token_id, (text, is_special, _) in added.items():
            tokens[token_id] = text
            kinds[token_id] = TokenKind.CONTROL if is_special else TokenKind.USER_DEFINED
        return tokens, bytearray(with_controls(tokens, bytes(kinds)))

    def _merges(self, model: Json, ids: Mapping[str, int], kinds: bytearray) -> PackedTexts:
        entries = model.get("merges")
        if not isinstance(entries, list) or len(entries) > MAX_MERGES:
            raise self.fault("model.merges", f"expected a list of at most {MAX_MERGES} merges")
        mergeable = {text for text, i in ids.items() if kinds[i] != TokenKind.CONTROL}
        merges = []
        for index, entry in enumerate(entries):
            parts = entry.split(" ") if isinstance(entry, str) else entry
            if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) and p for p in parts):
                raise self.fault(f"model.merges[{index}]", "expected two tokens")
            left, right = parts
            for part in (left, right, left + right):
                if part not in ids:
                    raise self.fault(f"model.merges[{index}]", f"token {part[:40]!r} isn't in the vocabulary")
            if left in mergeable and right in mergeable and left + right in mergeable:
                merges.append((left, right))
        return pack_merges(merges)

    def _strips_leading_space(self) -> bool:
        for step in _walk(self.part("decoder")):
            if step.get("type") == "Strip" and step.get("content") == " " and step.get("start") == 1:
                return True
            if step.get("type") == "Metaspace":
                return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space") is not False
        return False

    def _special_ids(self, ids: Mapping[str, int], tokens: list[str], kinds: bytearray, model: Json) -> dict[str, Any]:
        named = {name: self._named_id(name, ids) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        if named["unk_token"] is None and isinstance(model.get("unk_token"), str):
            named["unk_token"] = ids.get(model["unk_token"])
        prefix, suffix = self._template_ids(ids)
        if not prefix and self.config.get("add_bos_token") is True and named["bos_token"] is not None:
            prefix = (named["bos_token"],)
        if not suffix and self.config.get("add_eos_token") is True and named["eos_token"] is not None:
            suffix = (named["eos_token"],)
        unknown = named["unk_token"]
        if unknown is not None and kinds[unknown] == TokenKind.CONTROL:
            kinds[unknown] = TokenKind.UNKNOWN
        return {
            "bos_token_id": named["bos_token"],
            "eos_token_id": named["eos_token"],
            "unk_token_id": unknown,
            "pad_token_id": named["pad_token"],
            "end_token_ids": end_ids(tokens, bytes(kinds), [named["eos_token"]]),
            "prefix_ids": prefix,
            "suffix_ids": suffix,
        }

    def _named_id(self, name: str, ids: Mapping[str, int]) -> int | None:
        value = self.config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        return ids.get(text) if isinstance(text, str) else None

    def _template_ids(self, ids: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Special tokens the post-processor puts before and after a single text."""
        for step in _walk(self.part("post_processor")):
            if step.get("type") != "TemplateProcessing":
                continue
            sides: tuple[list[int], list[int]] = ([], [])
            side = 0
            for item in step.get("single") or []:
                if not isinstance(item, dict):
                    raise self.fault("post_processor.single", "expected objects")
                if "Sequence" in item:
                    side = 1
                    continue
                special = item.get("SpecialToken")
                text = special.get("id") if isinstance(special, dict) else None
                if not isinstance(text, str) or text not in ids:
                    raise self.fault("post_processor.single", f"token {str(text)[:40]!r} isn't in the vocabulary")
                sides[side].append(ids[text])
            return tuple(sides[0]), tuple(sides[1])
        return (), ()


def _walk(component: Any) -> Iterator[Json]:
    """Every object within a component, itself first."""
    stack = [component]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _is_byte_token(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">") and _is_hex(token[3:5])


def _is_hex(text: str) -> bool:
    return all(character in "0123456789ABCDEFabcdef" for character in text)


def _without_first_prefix(pipeline: Json) -> tuple[Json, PrefixRule]:
    """The same steps for a stretch of text that isn't the first, where they say that only the first takes a space."""

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(item) for item in value]
        if not isinstance(value, dict):
            return value
        copy = {key: changed(item) for key, item in value.items()}
        if copy.get("type") == "Metaspace" and copy.get("prepend_scheme") == "first":
            copy["prepend_scheme"] = "never"
        return copy

    inner = changed(pipeline)
    return inner, "every" if inner == pipeline else "first"
