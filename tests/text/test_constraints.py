"""Masks over tiny vocabularies of both kinds, each against what its grammar means."""

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import ConstraintError, InvalidRequestError
from foreword.core.structured_output import StructuredOutput
from foreword.core.types import TokenId
from foreword.text.constraints import ConstraintCompiler
from foreword.text.tokenizer import Tokenizer
from tests.text.masks import allowed_ids
from tests.text.tiny import byte_level_metadata, byte_level_tokenizer, sentencepiece_tokenizer


def endless_tokenizer() -> Tokenizer:
    """No token ends a text."""
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    return byte_level_tokenizer(eos_token_id=None, token_type=[1] * len(tokens))


TOKENIZERS: dict[str, Tokenizer] = {
    "byte_level": byte_level_tokenizer(),
    "sentencepiece": sentencepiece_tokenizer(),
    "endless": endless_tokenizer(),
}
COMPILERS = {name: ConstraintCompiler(tokenizer) for name, tokenizer in TOKENIZERS.items()}
each_kind = pytest.mark.parametrize("kind", COMPILERS)


def wander(kind: str, wanted: StructuredOutput, seed: int, most: int = 200) -> tuple[bytes, list[int], bool]:
    """Follow a constraint by drawing allowed tokens: the bytes, the tokens, and whether the end was reached."""
    tokenizer, rng = TOKENIZERS[kind], random.Random(seed)
    state, drawn = COMPILERS[kind].compile(wanted).start(), list[int]()
    while not state.is_finished and len(drawn) < most:
        token = rng.choice(allowed_ids(state, tokenizer.vocab_size))
        state.accept(TokenId(token))
        if token in tokenizer.eos_token_ids:
            assert state.is_finished
            break
        drawn.append(token)
    return b"".join(tokenizer.token_bytes(token) for token in drawn), drawn, state.is_finished


@each_kind
@given(
    choices=st.lists(st.text('abhelo<|>é\n"\\ 한', min_size=1, max_size=6), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_a_choice_allows_exactly_the_tokens_that_lead_to_one_of_its_texts(
    kind: str, choices: list[str], seed: int
) -> None:
    tokenizer, rng = TOKENIZERS[kind], random.Random(seed)
    texts = [choice.encode() for choice in choices]
    state, written = COMPILERS[kind].compile(StructuredOutput(choice=choices)).start(), b""

    while not state.is_finished:
        leading = {
            token
            for token in range(tokenizer.vocab_size)
            if not tokenizer.is_special(token)
            and tokenizer.token_bytes(token)
            and any(text.startswith(written + tokenizer.token_bytes(token)) for text in texts)
        }
        ends = tokenizer.eos_token_ids if written in texts else frozenset()
        assert set(allowed_ids(state, tokenizer.vocab_size)) == leading | ends
        token = rng.choice(sorted(leading | ends))
        state.accept(TokenId(token))
        written += b"" if token in ends else tokenizer.token_bytes(token)

    assert written in texts


@each_kind
@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        (StructuredOutput(regex=r"a+/b?"), lambda text: text.rstrip("b").rstrip("/").strip("a") == ""),
        (StructuredOutput(grammar='start: "a" b\nb: "c"+ | "d"'), lambda text: text[0] == "a" and text[1] in "cd"),
        (StructuredOutput(regex=r"[0-9]{3}-[a-c]{2}/é"), lambda text: len(text) == 8 and text.endswith("/é")),
    ],
)
def test_what_ends_matches(kind: str, wanted: StructuredOutput, holds: Callable[[str], bool]) -> None:
    ended = 0
    for seed in range(20):
        data, _, is_finished = wander(kind, wanted, seed)
        ended += is_finished
        if is_finished:
            assert holds(data.decode())

    assert ended or kind == "endless"


@each_kind
def test_any_json_object_is_one(kind: str) -> None:
    ended = 0
    for seed in range(30):
        data, _, is_finished = wander(kind, StructuredOutput(json_object=True), seed, most=400)
        ended += is_finished
        if is_finished:
            assert isinstance(json.loads(data), dict)

    assert ended


@each_kind
def test_a_state_is_a_function_of_the_tokens(kind: str) -> None:
    constraint = COMPILERS[kind].compile(StructuredOutput(json_object=True))
    _, drawn, _ = wander(kind, StructuredOutput(json_object=True), 5, most=60)
    step_by_step = constraint.start()

    for count, token in enumerate(drawn):
        at_once = constraint.start([TokenId(t) for t in drawn[:count]])
        assert at_once.allowed_tokens == step_by_step.allowed_tokens
        assert at_once.is_finished == step_by_step.is_finished
        step_by_step.accept(TokenId(token))


@each_kind
def test_special_tokens_are_no_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    state = COMPILERS[kind].compile(StructuredOutput(regex=r"(?s:.*)")).start()

    special = {token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)}

    assert special & set(allowed_ids(state, tokenizer.vocab_size)) == tokenizer.eos_token_ids


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    state = COMPILERS["byte_level"].compile(StructuredOutput(regex="ab")).start()

    with pytest.raises(ConstraintError):
        state.accept(TokenId(TOKENIZERS["byte_level"].encode("b", add_special_tokens=False)[0]))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"regex": "(a"}, "invalid regex"),
        ({"regex": r"(a)\1"}, "invalid regex"),
        ({"regex": "(|)"}, "empty answer"),
        ({"grammar": "start: foo"}, "unknown name"),
        ({"grammar": 'foo: "a"'}, "no start"),
        ({"json_schema": {"type": "hiccup"}}, "hiccup"),
        ({"json_schema": {"type": "object", "dependencies": {"a": ["b"]}}}, "dependencies"),
        ({"json_schema": {"$ref": "https://example.com/schema.json"}}, ""),
        ({"json_schema": {"type": "string", "pattern": "("}}, "regex"),
        ({"json_schema": {"type": "object", "properties": {"a": False}, "required": ["a"]}}, "nsatisfiable"),
    ],
)
def test_what_can_not_be_enforced_is_one_line_that_says_why(fields: dict[str, object], told: str) -> None:
    (name,) = fields

    with pytest.raises(InvalidRequestError) as caught:
        COMPILERS["byte_level"].compile(StructuredOutput(**fields))  # type: ignore[arg-type]

    assert caught.value.field == f"structured_output.{name}"
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_form_is_compiled_once_and_old_ones_are_let_go() -> None:
    compiler = ConstraintCompiler(TOKENIZERS["byte_level"], max_cached=2)
    a, b, c = (StructuredOutput(regex=letter) for letter in "abc")

    first = compiler.compile(a)
    compiler.compile(b)

    assert compiler.compile(a) is first
    compiler.compile(c)  # b goes
    assert compiler.compile(a) is first
    compiler.compile(b)
    compiler.compile(c)  # a goes
    assert compiler.compile(a) is not first
