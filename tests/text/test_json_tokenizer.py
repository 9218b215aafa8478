"""`tokenizer.json`: equal to the `tokenizers` library itself, and refused when malformed or hostile."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import ModelFormatError
from foreword.text.gguf_tokenizer import spec_from_gguf
from foreword.text.json_tokenizer import MAX_TOKENIZER_BYTES
from foreword.text.tokenizer import Tokenizer
from foreword.text.tokenizer_spec import as_pairs
from tests.text.tiny import SPECIALS, byte_level_tokenizer, json_document, sentencepiece_metadata, write_json

PIECES = st.sampled_from([*SPECIALS, "<think>", "<s>", "</s>", "<tool>", " ", "  ", "\n", "hello", "12"])
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=8).map("".join)
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


def sentencepiece_document(scheme: str | None) -> dict[str, Any]:
    """The tiny SentencePiece model with a `Metaspace` of some scheme, or, for None, with normalisers as Llama 2's."""
    metadata = sentencepiece_metadata()
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = as_pairs(spec_from_gguf(metadata, "tiny").merges)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return {
        "version": "1.0",
        "added_tokens": [
            flags | {"id": i, "content": token, "special": kind != 4}
            for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind in (2, 3, 4)
        ],
        "normalizer": normalizer if scheme is None else None,
        "pre_tokenizer": None if scheme is None else metaspace,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [tokens.index("<s>")], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


DOCUMENTS = {
    "byte-level": json_document(),
    "byte-level, spaces taken": json_document(
        added_tokens=[
            token | {"lstrip": token["id"] == 1, "rstrip": token["id"] == 2, "single_word": token["id"] == 0}
            for token in json_document()["added_tokens"]
        ]
    ),
    "first": sentencepiece_document("first"),
    "always": sentencepiece_document("always"),
    "never": sentencepiece_document("never"),
    "normalizers": sentencepiece_document(None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module", params=sorted(DOCUMENTS))
def both(request: pytest.FixtureRequest, folder: Path) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """The library's tokenizer and ours, of one file."""
    path = write_json(folder, DOCUMENTS[request.param], f"{request.param}.json")
    return tokenizers.Tokenizer.from_file(str(path)), Tokenizer.from_file(path)


@given(texts=st.lists(TEXTS, min_size=5, max_size=20))
def test_ids_and_text_equal_those_of_the_library(
    both: tuple[tokenizers.Tokenizer, Tokenizer], texts: list[str]
) -> None:
    theirs, ours = both
    for text in texts:
        for add in (True, False):
            ids = ours.encode(text, add_special_tokens=add, parse_special=True)
            assert ids == theirs.encode(text, add_special_tokens=add).ids, text
        assert ours.decode(ids) == theirs.decode(ids)


def test_a_json_and_a_gguf_of_the_same_vocabulary_agree(tmp_path: Path) -> None:
    ours = Tokenizer.from_file(write_json(tmp_path, json_document()))

    for text in ("hello <think> <|im_end|> 12", "  é😀\n"):
        for parse in (True, False):
            expected = byte_level_tokenizer().encode(text, add_special_tokens=False, parse_special=parse)
            assert ours.encode(text, add_special_tokens=False, parse_special=parse) == expected


def test_ids_and_flags_come_from_the_config(tmp_path: Path) -> None:
    config = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": True}
    path = write_json(tmp_path, json_document())

    tokenizer = Tokenizer.from_file(path, write_json(tmp_path, config, "tokenizer_config.json"))

    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 2)
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.encode("", add_special_tokens=True) == [0]


def test_no_text_makes_a_special_token(tmp_path: Path) -> None:
    for name, document in DOCUMENTS.items():
        tokenizer = Tokenizer.from_file(write_json(tmp_path, document, f"{name}.json"))
        text = " ".join(tokenizer.special_tokens)

        assert not any(map(tokenizer.is_special, tokenizer.encode(text, add_special_tokens=False)))


def test_an_added_token_that_reads_like_a_control_token_is_one(tmp_path: Path) -> None:
    added = [token | {"special": False} for token in json_document()["added_tokens"]]

    tokenizer = Tokenizer.from_file(write_json(tmp_path, json_document(added_tokens=added)))

    assert tokenizer.special_tokens.keys() == set(SPECIALS)


def split_by(pattern: str) -> dict[str, Any]:
    return SPLIT | {"pattern": {"Regex": pattern}}


@pytest.mark.parametrize(
    ("field", "document"),
    [
        ("file", "not json"),
        ("file", "[1, 2]"),
        ("file", "[" * 100_000),
        ("file", '{"model": '),
        ("model.type", json_document(model__type="Unigram")),
        ("model.type", json_document(model__type=["BPE"])),
        ("model", json_document(model="BPE")),
        ("model.vocab", json_document(model__vocab=[])),
        ("model.vocab", json_document(model__vocab={})),
        ("model.vocab", json_document(model__vocab={"a": -1})),
        ("model.vocab", json_document(model__vocab={"a": 2**63})),
        ("model.vocab", json_document(model__vocab={"a": 1.5})),
        ("model.vocab", json_document(model__vocab={"a": True})),
        ("model.vocab", json_document(model__vocab={"a": 2_000_000})),
        ("model.merges", json_document(model__merges=None)),
        ("model.merges[0]", json_document(model__merges=["a"])),
        ("model.merges[0]", json_document(model__merges=["a b c"])),
        ("model.merges[0]", json_document(model__merges=[["a", 1]])),
        ("model.merges[0]", json_document(model__merges=["a absent"])),
        ("model.dropout", json_document(model__dropout=0.5)),
        ("added_tokens", json_document(added_tokens="x")),
        ("added_tokens[0]", json_document(added_tokens=["x"])),
        ("added_tokens[0]", json_document(added_tokens=[{"id": -1, "content": "x"}])),
        ("added_tokens[0]", json_document(added_tokens=[{"id": 1, "content": ""}])),
        ("pre_tokenizer", json_document(pre_tokenizer=split_by(r"(a+)+$"))),
        ("pre_tokenizer", json_document(pre_tokenizer={"type": "Sequence", "pretokenizers": [split_by(r"(a|a)*b")]})),
        ("pre_tokenizer", json_document(pre_tokenizer=SPLIT | {"pattern": {"Regex": 5}})),
        ("pre_tokenizer", json_document(pre_tokenizer={"type": "NoSuchStep"})),
        ("pre_tokenizer", json_document(pre_tokenizer=split_by("[z-a]"))),
        ("pre_tokenizer", json_document(pre_tokenizer="ByteLevel")),
        ("normalizer", json_document(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ("post_processor", json_document(post_processor={"type": "TemplateProcessing", "single": [1]})),
        (
            "post_processor",
            json_document(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}]}),
        ),
    ],
)
def test_malformed_and_hostile_files_are_refused(tmp_path: Path, field: str, document: Any) -> None:
    path = write_json(tmp_path, document)
    start = time.process_time()

    with pytest.raises(ModelFormatError) as caught:
        Tokenizer.from_file(path)

    assert str(caught.value).startswith(f"{path}: {field}")
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 1.0


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 30)
    start = time.process_time()

    with pytest.raises(ModelFormatError, match=f"at most {MAX_TOKENIZER_BYTES}"):
        Tokenizer.from_file(path)

    assert time.process_time() - start < 0.2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="No such file"):
        Tokenizer.from_file(tmp_path / "absent.json")


@pytest.mark.parametrize(("stated", "more"), [(None, set()), (1, {1}), ([1, 5], {1, 5}), ([], set())])
def test_a_generation_config_names_more_tokens_that_end_an_answer(tmp_path: Path, stated: Any, more: set[int]) -> None:
    path = write_json(tmp_path, json_document())
    config = write_json(tmp_path, {"eos_token_id": stated, "temperature": 0.6}, "generation_config.json")

    alone, told = Tokenizer.from_file(path), Tokenizer.from_file(path, generation_config=config)

    assert told.eos_token_ids == alone.eos_token_ids | more
    assert told.eos_token_id == alone.eos_token_id


@pytest.mark.parametrize("stated", ["-1", "1000000", '"2"', "true", "2.0", "[2, null]", '{"id": 2}', "1" + "0" * 5000])
def test_end_tokens_that_are_no_tokens_are_refused_by_name(tmp_path: Path, stated: str) -> None:
    path = write_json(tmp_path, json_document())
    config = write_json(tmp_path, '{"eos_token_id": ' + stated + "}", "generation_config.json")

    with pytest.raises(ModelFormatError, match=r"generation_config\.json: (eos_token_id|file): "):
        Tokenizer.from_file(path, generation_config=config)
