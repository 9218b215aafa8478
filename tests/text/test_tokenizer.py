"""Tokenizers from GGUF metadata: golden ids, round trips, and that no text makes a special token."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import InvalidRequestError
from foreword.text.pretokenizers import PRE_TOKENIZERS
from foreword.text.tokenizer import Tokenizer
from tests.text.golden_strings import GOLDEN, golden_strings, ids_digest, text_digest
from tests.text.tiny import SPECIALS, byte_level_metadata, byte_level_tokenizer, sentencepiece_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
BOTH = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])

PIECES = st.sampled_from(
    [*SPECIALS, "<s>", "</s>", "<unk>", "<think>", "<tool>", "<0x41>", " ", "  ", "\n", "▁", "hello", "12"]
)
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=8).map("".join)
NO_LOW_LINE = TEXTS.map(lambda text: text.replace("▁", "_"))  # SentencePiece's sign for a space, which it can't spell


def golden(name: str) -> tuple[list[str], list[str]]:
    document = json.loads((GOLDEN / f"{name}.json").read_text())
    strings = golden_strings(document["specials"])
    assert text_digest(strings) == document["strings"]
    return strings, document["ids"]


def test_ids_of_10_000_strings_equal_those_of_transformers_and_sentencepiece() -> None:
    strings, expected = golden("sentencepiece")

    wrong = [
        text
        for text, digest in zip(strings, expected, strict=True)
        if ids_digest(SENTENCEPIECE.encode(text, add_special_tokens=False, parse_special=True)) != digest
    ]

    assert wrong == []


@given(TEXTS)
def test_byte_level_text_comes_back(text: str) -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text, add_special_tokens=False)) == text


@given(NO_LOW_LINE)
def test_sentencepiece_text_comes_back(text: str) -> None:
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text, add_special_tokens=False)) == text


@BOTH
@given(text=TEXTS)
def test_no_text_makes_a_special_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)

    assert not any(map(tokenizer.is_special, ids))


@BOTH
def test_special_tokens_are_parsed_only_on_request(tokenizer: Tokenizer) -> None:
    for text, token_id in tokenizer.special_tokens.items():
        plain = tokenizer.encode(f"a{text}b", add_special_tokens=False)
        parsed = tokenizer.encode(f"a{text}b", add_special_tokens=False, parse_special=True)

        assert token_id not in plain
        assert parsed.count(token_id) == 1
        assert text in tokenizer.decode(parsed, skip_special_tokens=False)
        assert text not in tokenizer.decode(parsed)


@BOTH
def test_empty_text_has_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("", add_special_tokens=False) == []
    assert tokenizer.decode([]) == ""


def test_user_defined_tokens_are_kept_whole() -> None:
    (think,) = BYTE_LEVEL.encode("<think>", add_special_tokens=False)

    assert BYTE_LEVEL.token_text(think) == "<think>"
    assert not BYTE_LEVEL.is_special(think)


@pytest.mark.parametrize("text", ["<|im_start|>", "<｜User｜>", "<end_of_turn>", "</s>"])
def test_a_user_defined_token_that_reads_like_a_control_token_is_one(text: str) -> None:
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    tokenizer = byte_level_tokenizer(tokens=[*tokens[:-1], text])

    ids = tokenizer.encode(text, add_special_tokens=False)

    assert tokenizer.is_special(len(tokens) - 1)
    assert not any(map(tokenizer.is_special, ids))
    assert tokenizer.encode(text, add_special_tokens=False, parse_special=True) == [len(tokens) - 1]


def test_merges_are_applied_by_rank_within_words() -> None:
    ids = BYTE_LEVEL.encode("hello hello  the12", add_special_tokens=False)

    assert [BYTE_LEVEL.token_text(i) for i in ids] == ["hello", "Ġhello", "Ġ", "Ġ", "t", "he", "12"]


def test_the_longest_special_token_counts() -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"][1] = "<|im_end|><|im_end|>"
    tokenizer = Tokenizer.from_gguf(metadata)

    assert tokenizer.encode("<|im_end|><|im_end|><|im_end|>", add_special_tokens=False, parse_special=True) == [1, 2]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({}, []), ({"add_bos_token": True}, [0]), ({"add_bos_token": True, "add_eos_token": True}, [0, 2])],
)
def test_beginning_and_end_tokens_follow_the_flags(flags: dict[str, Any], expected: list[int]) -> None:
    tokenizer = byte_level_tokenizer(**flags)

    assert tokenizer.encode("", add_special_tokens=True) == expected
    assert tokenizer.encode("", add_special_tokens=False) == []


def test_sentencepiece_adds_a_beginning_token_unless_told_otherwise() -> None:
    assert SENTENCEPIECE.encode("", add_special_tokens=True) == [SENTENCEPIECE.bos_token_id]
    assert sentencepiece_tokenizer(add_bos_token=False).encode("", add_special_tokens=True) == []


def test_llama_3_files_add_a_beginning_token_and_keep_whole_words() -> None:
    metadata = byte_level_metadata(pre="llama-bpe", add_bos_token=None)
    metadata["tokenizer.ggml.tokens"].insert(-1, "xyz")  # a word no merge leads to
    metadata["tokenizer.ggml.token_type"].insert(-1, 1)
    tokenizer = Tokenizer.from_gguf(metadata)

    ids = tokenizer.encode("xyz", add_special_tokens=True)

    assert [tokenizer.token_text(i) for i in ids] == ["<|endoftext|>", "xyz"]


def test_end_tokens_are_those_stated_and_those_known_by_name() -> None:
    assert BYTE_LEVEL.eos_token_ids == {0, 2}
    assert byte_level_tokenizer(eos_token_id=1, eot_token_id=5).eos_token_ids == {0, 1, 2, 5}


def test_without_space_prefix_text_is_spelled_as_it_is() -> None:
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False)

    ids = tokenizer.encode(" the", add_special_tokens=False)

    assert tokenizer.token_text(ids[0]).startswith("▁")
    assert tokenizer.decode(ids) == " the"
    assert not tokenizer.token_text(tokenizer.encode("the", add_special_tokens=False)[0]).startswith("▁")


def test_sentencepiece_takes_a_space_after_a_special_token_but_not_after_a_user_defined_one() -> None:
    ids = SENTENCEPIECE.encode("the<|im_end|>the<tool>the", add_special_tokens=False, parse_special=True)

    pieces = [SENTENCEPIECE.token_text(i) for i in ids]
    assert pieces[pieces.index("<|im_end|>") + 1].startswith("▁")
    assert not pieces[pieces.index("<tool>") + 1].startswith("▁")


def test_characters_outside_a_sentencepiece_vocabulary_are_spelled_in_bytes() -> None:
    ids = SENTENCEPIECE.encode("\U00012345", add_special_tokens=False)

    assert b"".join(map(SENTENCEPIECE.token_bytes, ids)) == " \U00012345".encode()


def test_a_vocabulary_without_bytes_has_an_unknown_token() -> None:
    tokens, kinds, scores = ["<unk>", "<s>", "</s>", "▁", "a"], [2, 3, 3, 1, 1], [0.0, 0.0, 0.0, -1.0, -2.0]
    tokenizer = sentencepiece_tokenizer(tokens=tokens, token_type=kinds, scores=scores)

    assert tokenizer.encode("aéa", add_special_tokens=False) == [3, 4, 0, 4]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_named_pre_tokenizer_cuts_text_without_losing_any(name: str) -> None:
    tokenizer = byte_level_tokenizer(pre=name)
    text = "Hello, I'M  12345 fooBar ½ x² \t\r\n\n日本語 e\u0301 😀 $9.99 don't\u3000//  \u00a0 end  "

    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@BOTH
@pytest.mark.parametrize("bad", [-1, 10**6, 2**63, True, "1", 1.0, None])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, bad: Any) -> None:
    for call in (tokenizer.is_special, tokenizer.token_bytes, tokenizer.token_text, lambda i: tokenizer.decode([0, i])):
        with pytest.raises(InvalidRequestError, match="token_id"):
            call(bad)


@BOTH
@pytest.mark.parametrize("bad", ["a\ud800b", None, b"abc", 3])
def test_what_is_not_text_is_refused(tokenizer: Tokenizer, bad: Any) -> None:
    with pytest.raises(InvalidRequestError, match="text"):
        tokenizer.encode(bad, add_special_tokens=False)


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    ids = [BYTE_LEVEL.encode("é", add_special_tokens=False)[0]]

    assert BYTE_LEVEL.decode(ids) == "\ufffd"
    assert BYTE_LEVEL.token_bytes(ids[0]) == b"\xc3"


def test_equal_metadata_has_equal_digests_in_another_process() -> None:
    code = "from tests.text.tiny import byte_level_tokenizer as t; print(t().digest.hex())"

    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )

    assert other.stdout.strip() == BYTE_LEVEL.digest.hex()


def test_whatever_changes_tokenisation_changes_the_digest() -> None:
    digests = [BYTE_LEVEL.digest, SENTENCEPIECE.digest, sentencepiece_tokenizer(add_space_prefix=False).digest]
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    kinds = byte_level_metadata()["tokenizer.ggml.token_type"]
    merges = byte_level_metadata()["tokenizer.ggml.merges"]
    for changes in (
        {"pre": "smollm"},
        {"tokens": ["<|other|>", *tokens[1:]]},
        {"token_type": [1, *kinds[1:]]},
        {"merges": merges[::-1]},
        {"add_bos_token": True},
    ):
        digests.append(byte_level_tokenizer(**changes).digest)

    assert len(set(digests)) == len(digests)
