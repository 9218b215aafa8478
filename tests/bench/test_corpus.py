from itertools import islice

import pytest

from foreword.bench.corpus import Corpus, docstrings
from foreword.bench.quality import NUM_TOKENS, built_in_text
from foreword.core.errors import CapacityError
from foreword.models.registry import open_model_files
from foreword.text.loading import load_text
from tests.smollm2 import SMOLLM2, needs_smollm2


class _Words:
    """One token a word."""

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        assert not add_special_tokens
        assert not parse_special
        return [len(word) for word in text.split()]


def test_runs_are_of_the_asked_length_and_follow_one_another() -> None:
    pieces, whole = Corpus(_Words()), Corpus(_Words())

    taken = [pieces.take(n) for n in (1, 700, 0, 64)]

    assert [len(run) for run in taken] == [1, 700, 0, 64]
    assert [token for run in taken for token in run] == whole.take(765)


def test_texts_are_prose_and_never_repeat() -> None:
    texts = list(islice(docstrings(), 200))

    assert len(set(texts)) == len(texts) == 200
    assert min(map(len, texts)) > 300


def test_a_corpus_that_is_used_up_says_so() -> None:
    corpus = Corpus(_Words(), ["one two", "three"])

    assert corpus.take(2) == [3, 3]
    with pytest.raises(CapacityError, match="used up"):
        corpus.take(2)


@needs_smollm2
def test_the_built_in_text_is_long_enough_for_the_quality_row() -> None:
    with open_model_files(SMOLLM2) as files:
        tokenizer, _ = load_text(files)

    ids = tokenizer.encode(built_in_text(), add_special_tokens=True, parse_special=False)

    assert len(ids) >= NUM_TOKENS
