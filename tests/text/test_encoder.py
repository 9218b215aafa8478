"""The table of merges is built by the first text, once, and what is only hashed is held packed."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.models import BPE

from foreword.text import encoder
from foreword.text.packed_texts import pack_texts, unpack_texts
from foreword.text.tokenizer_spec import TokenizerSpec
from tests.text.tiny import byte_level_tokenizer

TEXT = "hello there, hello 12"


@given(st.lists(st.text(st.characters(codec=None), max_size=5)))
def test_texts_come_back_as_they_were_packed(texts: list[str]) -> None:
    assert unpack_texts(pack_texts(texts)) == texts


def test_ids_decode_without_the_table_and_the_first_text_builds_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = byte_level_tokenizer().encode(TEXT, add_special_tokens=False)
    built: list[TokenizerSpec] = []
    build = encoder._build_model

    def count(spec: TokenizerSpec) -> BPE:
        built.append(spec)
        return build(spec)

    monkeypatch.setattr(encoder, "_build_model", count)
    tokenizer = byte_level_tokenizer()

    assert tokenizer.decode(expected) == TEXT
    assert len(tokenizer.digest) == 32
    assert not built

    together = Barrier(4)

    def encode(_: int) -> list[int]:
        together.wait()
        return tokenizer.encode(TEXT, add_special_tokens=False)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encode, range(4))) == [expected] * 4
    assert len(built) == 1
