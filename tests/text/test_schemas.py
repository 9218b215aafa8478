"""Generated schemas, and answers drawn at random under their masks: each is valid by another implementation's word.

The vocabulary is one of single bytes, so every way that a mask leaves open is one that may be taken.
"""

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from foreword.core.errors import InvalidRequestError
from foreword.core.structured_output import StructuredOutput
from foreword.core.types import TokenId
from foreword.text.constraints import ConstraintCompiler
from tests.text.masks import allowed_ids
from tests.text.tiny import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
COMPILER = ConstraintCompiler(TOKENIZER)
MOST = 600
_CLOSING = frozenset(b'"}],')

names = st.text("abé_ ", min_size=1, max_size=3)
scalars = st.none() | st.booleans() | st.integers(-20, 20) | st.text('ab"\\é\n', max_size=3)


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(st.none() | st.integers(-30, 10))
    high = draw(st.none() | st.integers(10, 30))
    found: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    lowest, highest = draw(
        st.sampled_from([("minimum", "maximum"), ("exclusiveMinimum", "maximum"), ("minimum", "exclusiveMaximum")])
    )
    found |= {} if low is None else {lowest: low}
    return found | ({} if high is None else {highest: high + 2})


@st.composite
def texts(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["length", "pattern", "format"]))
    if kind == "pattern":
        return {"type": "string", "pattern": draw(st.sampled_from(["^[a-c]{1,3}$", "^x|y$", "^é?[0-9]{2}$", "b"]))}
    if kind == "format":
        return {"type": "string", "format": draw(st.sampled_from(["date", "time", "uuid", "ipv4"]))}
    low = draw(st.integers(0, 2))
    return {"type": "string", "minLength": low, "maxLength": low + draw(st.integers(0, 3))}


def composed(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def objects(draw: st.DrawFn) -> dict[str, Any]:
        properties = draw(st.dictionaries(names, inner, max_size=3))
        required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
        found = {"type": "object", "properties": properties, "required": required}
        return found | {"additionalProperties": draw(st.just(False) | inner)}

    @st.composite
    def lists(draw: st.DrawFn) -> dict[str, Any]:
        low = draw(st.integers(0, 2))
        first = draw(st.lists(inner, max_size=2))
        found = {"type": "array", "minItems": low, "maxItems": low + draw(st.integers(0, 2)), "items": draw(inner)}
        return found | ({"prefixItems": first} if first else {})

    return objects() | lists() | st.builds(lambda ways: {"anyOf": ways}, st.lists(inner, min_size=1, max_size=3))


schemas = st.recursive(
    st.just({"type": "boolean"})
    | st.just({"type": ["null", "boolean"]})
    | numbers()
    | texts()
    | st.builds(lambda value: {"const": value}, scalars)
    | st.builds(lambda values: {"enum": values}, st.lists(scalars, min_size=1, max_size=3)),
    composed,
    max_leaves=5,
)


def drawn(schema: dict[str, Any], seed: int) -> str | None:
    """An answer of tokens drawn among the allowed, rather of those that close something; None without an end."""
    rng, text = random.Random(seed), b""
    state = COMPILER.compile(StructuredOutput(json_schema=schema)).start()
    for _ in range(MOST):
        allowed = allowed_ids(state, TOKENIZER.vocab_size)
        ends = [i for i in allowed if i in TOKENIZER.eos_token_ids]
        closing = [i for i in allowed if set(TOKENIZER.token_bytes(i)) <= _CLOSING and i not in ends]
        token = rng.choice(ends or (closing if closing and rng.random() < 0.4 else allowed))
        if token in TOKENIZER.eos_token_ids:
            return text.decode()
        text += TOKENIZER.token_bytes(token)
        state.accept(TokenId(token))
        if state.is_finished:
            return text.decode()
    return None


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(schema=schemas, seed=st.integers(0, 99))
def test_whatever_is_drawn_under_a_schema_is_valid_by_it(schema: dict[str, Any], seed: int) -> None:
    try:
        answer = drawn(schema, seed)
    except InvalidRequestError as error:  # a pattern, a bound or a number of items that nothing can have
        assert "atisfiable" in str(error) or "empty" in str(error)  # noqa: PT017
        return
    if answer is None:
        event("no end")
    else:
        jsonschema.validate(json.loads(answer), schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("seed", range(5))
def test_a_schema_that_refers_to_itself_holds_too(seed: int) -> None:
    schema = {
        "$defs": {
            "n": {
                "type": "object",
                "properties": {"v": {"enum": [1, 2]}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/n",
    }

    answer = drawn(schema, seed)

    assert answer is not None
    jsonschema.validate(json.loads(answer), schema, jsonschema.Draft202012Validator)


OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (OBJECT | {"if": {"required": ["a"]}, "then": {"required": ["b"]}}, "if"),
        (OBJECT | {"not": {"required": ["a"]}}, "not"),
        (OBJECT | {"dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
        (OBJECT | {"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        (OBJECT | {"propertyNames": {"pattern": "^a"}}, "propertyNames"),
        (OBJECT | {"unevaluatedProperties": False}, "unevaluatedProperties"),
        (OBJECT | {"minProperties": 1}, "min/maxProperties"),
        (OBJECT | {"maxProperties": 1}, "min/maxProperties"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"type": "array", "unevaluatedItems": False}, "unevaluatedItems"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"$dynamicRef": "#x"}, "$dynamicRef"),
        ({"type": "string", "format": "hiccup"}, "hiccup"),
    ],
)
def test_what_is_not_enforced_is_refused_by_its_name(schema: dict[str, Any], name: str) -> None:
    for given_schema in (schema, {"type": "object", "properties": {"deep": schema}, "required": ["deep"]}):
        with pytest.raises(InvalidRequestError) as caught:
            COMPILER.compile(StructuredOutput(json_schema=given_schema))

        assert name in caught.value.expected
