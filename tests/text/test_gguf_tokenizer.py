"""Malformed metadata gives one clear line that names the file and the field."""

import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import ModelFormatError
from foreword.text.gguf_tokenizer import _cut_together
from foreword.text.packed_texts import unpack_texts
from foreword.text.tokenizer import Tokenizer
from foreword.text.tokenizer_spec import SPECIAL_KINDS, TokenKind, pack_merges
from tests.text.tiny import byte_level_metadata, byte_level_tokenizer, sentencepiece_metadata

TOKENS = byte_level_metadata()["tokenizer.ggml.tokens"]
COUNT = len(TOKENS)
ROOT = Path(__file__).resolve().parents[2]


def check_refused(metadata: dict[str, Any], field: str) -> None:
    start = time.process_time()
    with pytest.raises(ModelFormatError) as caught:
        Tokenizer.from_gguf(metadata, source="model.gguf")

    assert str(caught.value).startswith("model.gguf: tokenizer.ggml.")
    assert field in caught.value.field
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", None),
        ("model", "bert"),
        ("model", 3),
        ("model", ["gpt2"]),
        ("pre", "no-such-tokenizer"),
        ("pre", 7),
        ("tokens", None),
        ("tokens", []),
        ("tokens", "abc"),
        ("tokens", 5),
        ("tokens", [*TOKENS[:-1], 5]),
        ("tokens", [*TOKENS[:-1], b"x"]),
        ("tokens", [*TOKENS[:-1], "x" * 100_000]),
        ("token_type", [1]),
        ("token_type", [1] * (COUNT + 1)),
        ("token_type", [7] * COUNT),
        ("token_type", [-1] * COUNT),
        ("token_type", ["1"] * COUNT),
        ("token_type", [1.0] * COUNT),
        ("token_type", np.full(COUNT, 2**40)),
        ("merges", None),
        ("merges", ["ab"]),
        ("merges", ["a"]),
        ("merges", [""]),
        ("merges", [" "]),
        ("merges", ["a nope"]),
        ("merges", ["nope a"]),
        ("merges", ["a b"]),
        ("merges", [3]),
        ("merges", {"a": "b"}),
        ("bos_token_id", -1),
        ("bos_token_id", COUNT),
        ("bos_token_id", 2**64),
        ("bos_token_id", True),
        ("bos_token_id", "0"),
        ("bos_token_id", 1.5),
        ("eot_token_id", COUNT),
        ("add_bos_token", "yes"),
        ("add_bos_token", 1),
    ],
)
def test_malformed_byte_level_metadata_is_refused(field: str, value: Any) -> None:
    check_refused(byte_level_metadata(**{field: value}), field)


@pytest.mark.parametrize(("flag", "missing"), [("add_bos_token", "bos_token_id"), ("add_eos_token", "eos_token_id")])
def test_a_flag_needs_its_token(flag: str, missing: str) -> None:
    check_refused(byte_level_metadata(**{flag: True, missing: None}), missing)


def _changed(values: list[Any], index: int, value: Any) -> list[Any]:
    return [*values[:index], value, *values[index + 1 :]]


@pytest.mark.parametrize("token", ["<0x-1>", "<0xZZ>", "<0x1>", "<0x100>", "0x41", "<0x41", ""])
def test_malformed_byte_tokens_are_refused(token: str) -> None:
    metadata = sentencepiece_metadata()
    index = metadata["tokenizer.ggml.token_type"].index(6)
    metadata["tokenizer.ggml.tokens"][index] = token

    check_refused(metadata, f"tokens[{index}]")


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, "1", None])
def test_scores_must_be_finite_numbers(score: Any) -> None:
    scores = sentencepiece_metadata()["tokenizer.ggml.scores"]

    check_refused(sentencepiece_metadata(scores=_changed(scores, 700, score)), "scores")


def test_scores_must_be_there_for_every_token() -> None:
    check_refused(sentencepiece_metadata(scores=None), "scores")
    check_refused(sentencepiece_metadata(scores=[0.0]), "scores")


def test_numpy_arrays_are_read_like_lists() -> None:
    metadata = sentencepiece_metadata()
    arrays = dict(metadata)
    arrays["tokenizer.ggml.scores"] = np.array(metadata["tokenizer.ggml.scores"], np.float64)
    arrays["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], np.int32)
    arrays["tokenizer.ggml.bos_token_id"] = np.uint32(1)

    assert Tokenizer.from_gguf(arrays).digest == Tokenizer.from_gguf(metadata).digest


def test_a_merge_that_makes_a_control_token_is_left_out() -> None:
    metadata = byte_level_metadata()
    hell = metadata["tokenizer.ggml.tokens"].index("hell")
    metadata["tokenizer.ggml.token_type"][hell] = 3
    tokenizer = Tokenizer.from_gguf(metadata)

    ids = tokenizer.encode("hello", add_special_tokens=False)

    assert [tokenizer.token_text(i) for i in ids] == ["he", "ll", "o"]


def test_tokens_written_alike_are_tolerated() -> None:
    tokenizer = byte_level_tokenizer(tokens=[*TOKENS[:-1], "hello"], token_type=None)

    assert tokenizer.encode("hello", add_special_tokens=False) == [COUNT - 1]


@pytest.mark.parametrize("tokens", [["<" + "x" * 600 + ">"], [f"<unused{i:020}>" for i in range(12_000)]])
def test_special_tokens_without_measure_are_refused(tokens: list[str]) -> None:
    metadata = byte_level_metadata(tokens=TOKENS + tokens, token_type=[1] * COUNT + [3] * len(tokens))

    with pytest.raises(ModelFormatError, match=r"model\.gguf: special tokens: "):
        Tokenizer.from_gguf(metadata, source="model.gguf")


def test_a_vocabulary_without_measure_is_refused() -> None:
    check_refused(byte_level_metadata(tokens=[*TOKENS, *["x" * 60_000] * 300], token_type=None), "tokens")


def test_long_sentencepiece_tokens_cost_no_more_than_their_length() -> None:
    metadata = sentencepiece_metadata()
    metadata["tokenizer.ggml.tokens"] += ["a" * 60_000 + str(i) for i in range(200)]
    metadata["tokenizer.ggml.scores"] += [-9.0] * 200
    metadata["tokenizer.ggml.token_type"] += [1] * 200
    start = time.process_time()

    assert Tokenizer.from_gguf(metadata).vocab_size == len(metadata["tokenizer.ggml.tokens"])
    assert time.process_time() - start < 5.0


FIELDS = ["model", "pre", "tokens", "token_type", "merges", "scores", "bos_token_id", "eos_token_id", "add_bos_token"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.text(max_size=4) | st.integers(-2, 8) | st.floats(), max_size=6),
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3), st.sampled_from(["gpt2", "llama"]))
def test_any_metadata_is_read_or_refused(changes: dict[str, Any], model: str) -> None:
    metadata = byte_level_metadata() if model == "gpt2" else sentencepiece_metadata()
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in changes.items()}

    try:
        tokenizer = Tokenizer.from_gguf(metadata, source="model.gguf")
    except ModelFormatError:
        return

    assert isinstance(tokenizer.encode("hello <|im_end|> é", add_special_tokens=True), list)


TEXTS = st.text("ab \0Ġ\ud800", max_size=3)
KINDS = st.sampled_from([TokenKind.NORMAL, TokenKind.NORMAL, TokenKind.NORMAL, TokenKind.CONTROL, TokenKind.BYTE])


@given(st.lists(st.tuples(TEXTS, KINDS), max_size=12), st.lists(TEXTS | st.sampled_from(["a b", "a a"]), max_size=3))
def test_merges_are_cut_together_when_each_makes_a_plain_token_of_two(
    vocabulary: list[tuple[str, int]], lines: list[str]
) -> None:
    tokens, kinds = [text for text, _ in vocabulary], bytes(kind for _, kind in vocabulary)

    cut = _cut_together(tokens, kinds, lines)

    plain = set(tokens) - {text for text, kind in vocabulary if kind in SPECIAL_KINDS}
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    if cut is not None:
        assert unpack_texts(cut) == [half for pair in pairs for half in pair]
        assert all({left, right, left + right} <= plain for left, right in pairs)
    elif lines and "\0" not in "".join(tokens + lines) and "\ud800" not in "".join(tokens + lines):
        assert not all(" " in line for line in lines) or not all({x, y, x + y} <= plain for x, y in pairs)


def test_the_merges_of_a_common_vocabulary_are_cut_together() -> None:
    metadata = byte_level_metadata()
    tokens, lines = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]

    cut = _cut_together(tokens, bytes(metadata["tokenizer.ggml.token_type"]), lines)

    assert cut == pack_merges(tuple(line.split(" ")) for line in lines)


def test_whoever_sends_ids_never_waits_for_the_library_that_cuts_text() -> None:
    code = """
import sys
from foreword.text.tokenizer import Tokenizer
from tests.text.tiny import byte_level_metadata
tokenizer = Tokenizer.from_gguf(byte_level_metadata())
assert tokenizer.decode([5]) and tokenizer.eos_token_ids
print("tokenizers" in sys.modules, tokenizer.encode("a", add_special_tokens=False) and "tokenizers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)

    assert done.stdout.split() == ["False", "True"]
