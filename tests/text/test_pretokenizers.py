"""How named tokenizers cut text; expectations follow from their published patterns."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from foreword.text.pretokenizers import PRE_TOKENIZERS


def pieces(name: str, text: str) -> list[str]:
    rest: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "post_processor": None,
        "decoder": None,
    }
    model = {"type": "BPE", "vocab": {}, "merges": []}
    document = {**rest, "pre_tokenizer": PRE_TOKENIZERS[name].chain, "model": model}
    tokenizer = Tokenizer.from_str(json.dumps(document))
    assert tokenizer.pre_tokenizer is not None
    return [piece.replace("Ġ", "_").replace("Ċ", "\n") for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


TEXT = "fooBar DON'T  12345 a/b!\n x"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["fooBar", "_DON", "'", "T", "_", "_12345", "_a", "/", "b", "!", "\n", "_x"]),
        ("smollm", ["fooBar", "_DON", "'", "T", "__", "1", "2", "3", "4", "5", "_a", "/", "b", "!", "\n", "_x"]),
        ("llama-bpe", ["fooBar", "_DON", "'T", "_", "_", "123", "45", "_a", "/b", "!\n", "_x"]),
        ("qwen2", ["fooBar", "_DON", "'T", "_", "_", "1", "2", "3", "4", "5", "_a", "/b", "!\n", "_x"]),
        ("tekken", ["foo", "Bar", "_DON", "'T", "_", "_", "1", "2", "3", "4", "5", "_a", "/b", "!\n", "_x"]),
        ("gpt-4o", ["foo", "Bar", "_DON'T", "_", "_", "123", "45", "_a", "/b", "!\n", "_x"]),
        ("deepseek-v3", ["fooBar", "_DON", "'T", "__", "123", "45", "_a", "/b", "!\n", "_x"]),
        ("deepseek-llm", ["fooBar", "_DON", "'", "T", "__", "1", "2", "3", "4", "5", "_a", "/", "b", "!", "\n", "_x"]),
        ("falcon", ["fooBar", "_DON", "'", "T", "_", "_", "123", "45", "_a", "/", "b", "!", "\n", "_x"]),
        ("default", ["fooBar", "_DON", "'", "T", "_", "_", "123", "45", "_a", "/", "b", "!", "\n", "_x"]),
    ],
)
def test_text_is_cut_as_the_model_expects(name: str, expected: list[str]) -> None:
    assert pieces(name, TEXT) == expected


def test_combining_marks_stay_with_their_letters_in_qwen35_only() -> None:
    assert len(pieces("qwen35", "re\u0301sume\u0301")) == 1
    assert len(pieces("qwen2", "re\u0301sume\u0301")) > 1


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_no_named_pre_tokenizer_is_slow_on_long_runs(name: str) -> None:
    for text in ("a" * 20_000, " " * 20_000, "\n" * 20_000, "1" * 20_000, "!" * 20_000, " \n" * 10_000):
        assert "".join(pieces(name, text)) == text.replace(" ", "_")
