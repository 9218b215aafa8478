"""Text of a growing sequence of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import InvalidRequestError
from foreword.text.detokenizer import IncrementalDetokenizer
from foreword.text.tokenizer import Tokenizer
from tests.text.tiny import byte_level_tokenizer, sentencepiece_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
BOTH = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])


def pieces(detokenizer: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.add, ids), detokenizer.finish()]


@BOTH
@given(data=st.data(), skip=st.booleans())
def test_pieces_together_are_the_decoded_text(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, min(tokenizer.vocab_size, 400) - 1), max_size=30))

    text = "".join(pieces(IncrementalDetokenizer(tokenizer, skip_special_tokens=skip), ids))

    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@BOTH
@given(data=st.data(), text=st.text(max_size=12), skip=st.booleans())
def test_after_a_prompt_pieces_are_what_the_new_tokens_add(
    tokenizer: Tokenizer, data: st.DataObject, text: str, skip: bool
) -> None:
    prompt = tokenizer.encode(text.replace("▁", "_"), add_special_tokens=True)
    ids = data.draw(st.lists(st.integers(0, min(tokenizer.vocab_size, 400) - 1), max_size=20))

    added = "".join(pieces(IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip), ids))

    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    assert before + added == tokenizer.decode(prompt + ids, skip_special_tokens=skip)


@BOTH
@given(text=st.text(max_size=20))
def test_valid_text_never_shows_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    text = text.replace("\ufffd", "").replace("▁", "_")
    ids = tokenizer.encode(text, add_special_tokens=False)

    shown = pieces(IncrementalDetokenizer(tokenizer), ids)

    assert "\ufffd" not in "".join(shown)
    assert "".join(shown) == text


def test_a_character_is_shown_with_its_last_byte() -> None:
    ids = BYTE_LEVEL.encode("😀", add_special_tokens=False)

    assert pieces(IncrementalDetokenizer(BYTE_LEVEL), ids) == ["", "", "", "😀", ""]


def test_a_character_that_never_ends_is_replaced_at_the_end() -> None:
    ids = BYTE_LEVEL.encode("a😀", add_special_tokens=False)[:-1]

    assert pieces(IncrementalDetokenizer(BYTE_LEVEL), ids) == ["a", "", "", "", "\ufffd"]


def test_a_character_begun_in_the_prompt_is_shown_whole() -> None:
    ids = BYTE_LEVEL.encode("ab😀", add_special_tokens=False)

    assert pieces(IncrementalDetokenizer(BYTE_LEVEL, ids[:-2]), ids[-2:]) == ["", "😀", ""]


def test_an_answer_keeps_the_space_that_follows_a_prompt() -> None:
    prompt = SENTENCEPIECE.encode("the", add_special_tokens=True)
    answer = SENTENCEPIECE.encode("the", add_special_tokens=False)

    assert "".join(pieces(IncrementalDetokenizer(SENTENCEPIECE, prompt), answer)) == " the"
    assert "".join(pieces(IncrementalDetokenizer(SENTENCEPIECE, [prompt[0]]), answer)) == "the"


def test_a_wrong_id_changes_nothing() -> None:
    first, *rest = BYTE_LEVEL.encode("é", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    detokenizer.add(first)

    with pytest.raises(InvalidRequestError, match="token_id"):
        detokenizer.add(-1)

    assert "".join(pieces(detokenizer, rest)) == "é"
