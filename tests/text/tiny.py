"""Tiny vocabularies as GGUF metadata and as `tokenizer.json`."""

import json
from pathlib import Path
from typing import Any

from foreword.text.tokenizer import BYTE_OF_CHARACTER, Tokenizer
from tests.text.golden_strings import GOLDEN

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ Ġ", "t h", "th e", "i n", "1 2", "< |", "| >", "i m", "im _")


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """256 bytes, a few merges, three control tokens and a user-defined one; `changes` to fields, None removes one."""
    merged = [line.replace(" ", "") for line in MERGES]
    tokens = [*SPECIALS, *sorted(BYTE_OF_CHARACTER), *merged, "<think>"]
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS) - 1) + [4],
        "merges": list(MERGES),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "add_bos_token": False,
    } | changes
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}


def byte_level_words(*words: str) -> dict[str, Any]:
    """`byte_level_metadata` with some words as one token each; a space is part of a word if it is written so."""
    merges = list(MERGES)
    for word in words:
        letters = word.strip()
        merges += [f"{letters[:i]} {letters[i]}" for i in range(1, len(letters))]
        merges += [f"Ġ {letters}"] if word.startswith(" ") else []
    merges = list(dict.fromkeys(merges))
    merged = list(dict.fromkeys(line.replace(" ", "") for line in merges))
    tokens = [*SPECIALS, *sorted(BYTE_OF_CHARACTER), *merged, "<think>", "</think>"]
    kinds = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS) - 2) + [4, 4]
    return byte_level_metadata(tokens=tokens, token_type=kinds, merges=merges)


def byte_level_tokenizer(**changes: Any) -> Tokenizer:
    """A tokenizer of `byte_level_metadata`."""
    return Tokenizer.from_gguf(byte_level_metadata(**changes), source="tiny.gguf")


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """The tiny SentencePiece model of the golden files, trained by `sentencepiece`."""
    metadata: dict[str, Any] = json.loads((GOLDEN / "sentencepiece_metadata.json").read_text("utf-8"))
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return {name: value for name, value in metadata.items() if value is not None}


def sentencepiece_tokenizer(**changes: Any) -> Tokenizer:
    """A tokenizer of `sentencepiece_metadata`."""
    return Tokenizer.from_gguf(sentencepiece_metadata(**changes), source="tiny.gguf")


def json_document(**changes: Any) -> dict[str, Any]:
    """A byte-level `tokenizer.json` with the vocabulary of `byte_level_metadata`."""
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    added = [{"id": i, "content": tokens[i], "special": True} for i in range(len(SPECIALS))]
    added.append({"id": len(tokens) - 1, "content": tokens[-1], "special": False})
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [plain | token for token in added],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": list(MERGES),
        },
    }
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            document[part][field] = value
        else:
            document[part] = value
    return document


def write_json(folder: Path, document: Any, name: str = "tokenizer.json") -> Path:
    """Write a JSON document into a folder."""
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
    return path
