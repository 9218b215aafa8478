"""What a form may cost: bounded by counts of the parser's work, so that no answer can hold up those beside it."""

import random
from typing import Any

import pytest

from foreword.core.errors import ConstraintError, InvalidRequestError
from foreword.core.structured_output import StructuredOutput
from foreword.core.types import TokenId
from foreword.models.gguf_file import GGUFFile
from foreword.text import constraints
from foreword.text.constraints import ConstraintCompiler
from foreword.text.tokenizer import Tokenizer
from foreword.text.tool_formats import HERMES
from foreword.text.tool_grammar import calls_grammar, text_or_calls_grammar
from foreword.text.tools import Tool
from tests.smollm2 import SMOLLM2, needs_smollm2
from tests.text.masks import allowed_ids
from tests.text.tiny import byte_level_tokenizer


def alternatives(of: str, number: int) -> str:
    return " | ".join(of.format(i=i) for i in range(number))


GREEDY: dict[str, dict[str, Any]] = {
    "sums of sums": {"grammar": "start: s\ns: s s | /[a-z]/"},
    "sums of three": {"grammar": "start: s\ns: s s s | s s | /./ | /../"},
    "five hundred options": {"grammar": f"start: {'a? ' * 500}\na: /[a-z]/ | /[a-z]+/"},
    "three hundred ranges": {"grammar": f"start: ({alternatives('/[a-z]{{{i},{i}5}}/', 300)})*"},
    "repeats of repeats": {"grammar": 'start: ("a"{1,100000}){1,100000}'},
    "doubled": {"grammar": 'start: T0\nT99: "a"\n' + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(99))},
    "needles": {"grammar": f"start: ({alternatives('/.*{i}.*/', 1500)})*"},
    "all needles at once": {"grammar": "start: T\nT: " + " & ".join(f"/(.*{i}.*)/" for i in range(60))},
    "not that": {"grammar": "start: T\nT: ~/(.*(a|b).{20}.*)/ & /(.|\\n)*/"},
    "six hundred objects": {
        "json_schema": {
            "anyOf": [{"properties": {f"a{i}": {"minimum": i, "type": "number"}}, "type": "object"} for i in range(600)]
        }
    },
}  # fmt: skip

TOOLS = [
    Tool(f"tool_{i}", None, {"type": "object", "properties": {f"a{j}": {"type": "string"} for j in range(10)}}, True)
    for i in range(60)
]
MODEST: dict[str, dict[str, Any]] = {
    "any object": {"json_object": True},
    "200 optional properties": {
        "json_schema": {"properties": {f"p{i}": {"type": "string"} for i in range(200)}, "type": "object"}
    },
    "a list of 1,000 words": {"json_schema": {"enum": [f"word {i}" for i in range(1000)]}},
    "100 objects": {
        "json_schema": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": f"k{i}"}, f"v{i}": {"type": "string", "maxLength": 100}},
                    "required": ["kind"],
                }
                for i in range(100)
            ]
        }
    },
    "lists of long texts": {
        "json_schema": {"type": "array", "maxItems": 500, "items": {"type": "string", "maxLength": 500}}
    },
    "a tree": {
        "json_schema": {
            "$defs": {"n": {"type": "object", "properties": {"l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n",
        }
    },
    "dates": {"json_schema": {"type": "array", "items": {"type": "string", "format": "date-time"}}},
    "letters of all the world": {"regex": r"(\p{L}|\p{N}){1,100}"},
    "a programme": {
        "grammar": "%ignore /[ \\t\\n]+/\nstart: stmt*\n"
        'stmt: NAME "=" expr ";" | "if" expr "{" stmt* "}"\nexpr: expr OP expr | "(" expr ")" | NAME | NUM\n'
        "OP: /[-+*\\/]/\nNUM: /[0-9]+(\\.[0-9]+)?/\nNAME: /[a-z_]+/"
    },
    "sixty tools": {"grammar": calls_grammar(HERMES, TOOLS, opener_id=None, is_parallel=True)},
    "text or tools": {"grammar": text_or_calls_grammar(HERMES, TOOLS, opener_id=None)},
}


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2", marks=needs_smollm2)])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "tiny":
        return byte_level_tokenizer()
    return Tokenizer.from_gguf(GGUFFile(SMOLLM2).metadata, source=str(SMOLLM2))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> ConstraintCompiler:
    return ConstraintCompiler(tokenizer)


def wander(compiler: ConstraintCompiler, tokenizer: Tokenizer, form: StructuredOutput, most: int) -> list[int]:
    """Follow a form by drawing tokens that are allowed, rather any but the end; the tokens."""
    rng, drawn = random.Random(5), list[int]()
    state = compiler.compile(form).start()
    while not state.is_finished and len(drawn) < most:
        allowed = allowed_ids(state, tokenizer.vocab_size)
        drawn.append(rng.choice([i for i in allowed if i not in tokenizer.eos_token_ids] or allowed))
        state.accept(TokenId(drawn[-1]))
    return drawn


@needs_smollm2
@pytest.mark.parametrize("name", GREEDY)
def test_a_form_that_takes_too_much_is_refused_or_fails_with_its_reason(name: str) -> None:
    """By the count that ran out, with a real vocabulary."""
    tokenizer = Tokenizer.from_gguf(GGUFFile(SMOLLM2).metadata, source=str(SMOLLM2))

    with pytest.raises((ConstraintError, InvalidRequestError)) as caught:
        wander(ConstraintCompiler(tokenizer), tokenizer, StructuredOutput(**GREEDY[name]), 30)

    message = str(caught.value)
    assert "structured_output" in message
    assert "\n" not in message
    counts = (constraints.MAX_STEP_ITEMS, constraints.MAX_ROW_ITEMS, constraints.COMPILE_LEXER_FUEL)
    assert "too many expressions" in message or any(str(count) in message for count in counts)


@pytest.mark.parametrize("name", MODEST)
def test_a_form_such_as_people_write_has_all_the_work_it_takes(
    compiler: ConstraintCompiler, tokenizer: Tokenizer, name: str
) -> None:
    assert wander(compiler, tokenizer, StructuredOutput(**MODEST[name]), 40)


def test_a_form_may_run_out_of_work_in_the_middle_of_an_answer() -> None:
    """With a vocabulary of single bytes the first masks are cheap; the sums over what was said grow."""
    tokenizer = byte_level_tokenizer()
    compiler = ConstraintCompiler(tokenizer)
    sums = " | ".join("s " * terms for terms in range(2, 9))
    form = StructuredOutput(grammar=f"start: s\ns: {sums} | /[a-z]/")
    assert wander(compiler, tokenizer, form, 5)

    with pytest.raises(ConstraintError, match="more work than is granted"):
        wander(compiler, tokenizer, form, 200)


def test_tokens_of_before_are_taken_in_without_a_mask_for_each(
    compiler: ConstraintCompiler, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = StructuredOutput(json_object=True)
    drawn = wander(compiler, tokenizer, form, 40)
    while drawn and drawn[-1] in tokenizer.eos_token_ids:
        drawn.pop()
    assert drawn
    asked = []
    real = constraints._allowed_tokens

    def counted(matcher: Any) -> bytes:
        asked.append(matcher)
        return real(matcher)

    monkeypatch.setattr(constraints, "_allowed_tokens", counted)

    compiler.compile(form).start([TokenId(token) for token in drawn])

    assert len(asked) == 1
