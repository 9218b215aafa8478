"""A remembered answer keeps its tokens; nothing else changes, and nobody else's answer is ever used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.text.detokenizer import IncrementalDetokenizer
from foreword.text.turns import TurnMemory
from tests.text.tiny import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
SPECIAL = sorted(TOKENIZER.special_tokens.values())
PLAIN = [i for i in range(TOKENIZER.vocab_size) if not TOKENIZER.is_special(i)]


def spelled(text: str) -> list[int]:
    """A text a byte a token: never how the tokenizer itself would put a mergeable one."""
    single = {TOKENIZER.token_bytes(i): i for i in PLAIN if len(TOKENIZER.token_bytes(i)) == 1}
    return [single[bytes([b])] for b in text.encode()]


def encoded(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


START, END = SPECIAL[0], SPECIAL[-1]


def turn(ids: list[int]) -> list[int]:
    return [START, *ids, END]


texts = st.text(st.sampled_from("ab 1\né😀"), min_size=1, max_size=12)


@given(st.lists(texts, min_size=1, max_size=4), texts, texts)
def test_the_next_turn_uses_the_generated_tokens_and_spells_the_same(
    before: list[str], answer: str, following: str
) -> None:
    memory = TurnMemory(TOKENIZER)
    prompt = [token for text in before for token in turn(encoded(text))] + [START]
    generated = spelled(answer)

    memory.remember(prompt, [*generated, END])
    rendered = [*prompt, *encoded(answer), END, *turn(encoded(following)), START]
    spliced = memory.splice(rendered)

    assert spliced == [*prompt, *generated, END, *turn(encoded(following)), START]
    assert TOKENIZER.decode(spliced, skip_special_tokens=False) == TOKENIZER.decode(rendered, skip_special_tokens=False)


@given(st.binary(min_size=1, max_size=8))
def test_an_answer_that_is_no_text_comes_back_as_it_was_seen(raw: bytes) -> None:
    memory = TurnMemory(TOKENIZER)
    single = {TOKENIZER.token_bytes(i): i for i in PLAIN if len(TOKENIZER.token_bytes(i)) == 1}
    prompt, generated = [*turn(encoded("hi")), START], [single[bytes([byte])] for byte in raw]
    detokenizer = IncrementalDetokenizer(TOKENIZER, prompt)
    seen = "".join([*map(detokenizer.add, generated), detokenizer.finish()])

    memory.remember(prompt, generated)

    assert memory.splice([*prompt, *encoded(seen), END]) == [*prompt, *generated, END]


@given(texts, texts)
def test_a_changed_answer_is_used_as_rendered(answer: str, other: str) -> None:
    memory = TurnMemory(TOKENIZER)
    prompt = [*turn(encoded("hi")), START]

    memory.remember(prompt, spelled(answer))

    rendered = [*prompt, *encoded(other), END]
    expected = [*prompt, *spelled(other), END] if other == answer else rendered
    assert memory.splice(rendered) == expected


def test_the_longest_remembered_conversation_wins() -> None:
    memory = TurnMemory(TOKENIZER)
    first = [*turn(encoded("q")), START]
    memory.remember(first, spelled("ab"))
    second = [*first, *spelled("ab"), END, *turn(encoded("r")), START]
    memory.remember(second, spelled("a1"))

    rendered = [*first, *encoded("ab"), END, *turn(encoded("r")), START, *encoded("a1"), END]

    assert memory.splice(rendered) == [*second, *spelled("a1"), END]


def test_one_tenants_answers_are_never_anothers() -> None:
    memory = TurnMemory(TOKENIZER)
    prompt = [*turn(encoded("q")), START]
    memory.remember(prompt, spelled("ab"), b"one")
    rendered = [*prompt, *encoded("ab"), END]

    assert memory.splice(rendered, b"two") == rendered
    assert memory.splice(rendered) == rendered
    assert memory.splice(rendered, b"one") == [*prompt, *spelled("ab"), END]


def test_text_that_spells_a_special_token_is_not_that_token() -> None:
    memory = TurnMemory(TOKENIZER)
    real = [START, *encoded("q"), END, START]
    memory.remember(real, spelled("ab"))

    spelled_out = encoded(TOKENIZER.decode(real, skip_special_tokens=False))
    assert not any(TOKENIZER.is_special(token) for token in spelled_out)
    rendered = [*spelled_out, *encoded("ab"), END]

    assert memory.splice(rendered) == rendered


def test_an_answer_that_only_begins_alike_is_not_used() -> None:
    memory = TurnMemory(TOKENIZER)
    prompt = [*turn(encoded("q")), START]
    memory.remember(prompt, spelled("ab"))

    rendered = [*prompt, *encoded("ab a"), END]

    assert memory.splice(rendered) == rendered


@pytest.mark.parametrize(("answers", "tokens"), [(3, 1 << 20), (100, 40)])
def test_memory_is_bounded_by_answers_and_by_tokens(answers: int, tokens: int) -> None:
    memory = TurnMemory(TOKENIZER, max_answers=answers, max_tokens=tokens)

    for i in range(50):
        memory.remember([START], spelled(f"answer {i}"))

    assert 1 <= len(memory) <= answers
    newest = [START, *encoded("answer 49"), END]
    assert memory.splice(newest) == [START, *spelled("answer 49"), END]
    assert memory.splice([START, *encoded("answer 0"), END]) == [START, *encoded("answer 0"), END]


def test_an_empty_answer_is_nothing_to_remember() -> None:
    memory = TurnMemory(TOKENIZER)

    memory.remember([START, *encoded("q")], [END])

    assert len(memory) == 0
