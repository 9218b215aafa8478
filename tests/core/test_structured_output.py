"""Exactly one form, bounded, and written one way; whatever else is one line that names the field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import InvalidRequestError
from foreword.core.sampling_params import BeamSearchParams, SamplingParams
from foreword.core.structured_output import MAX_CHOICES, MAX_SCHEMA_DEPTH, MAX_STRUCTURED_BYTES, StructuredOutput

GOOD: list[dict[str, Any]] = [
    {"json_object": True},
    {"json_schema": {"type": "object"}},
    {"regex": "a+"},
    {"grammar": 'start: "a"'},
    {"choice": ["yes", "no"]},
]


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize("fields", GOOD)
def test_each_kind_says_what_it_is(fields: dict[str, Any]) -> None:
    wanted = StructuredOutput(**fields)

    assert [wanted.kind] == list(fields)
    assert wanted.source
    assert hash(wanted) == hash(StructuredOutput(**fields))
    assert SamplingParams(structured_output=wanted).structured_output == wanted


@pytest.mark.parametrize("first", GOOD)
@pytest.mark.parametrize("second", GOOD)
def test_two_forms_at_once_are_refused(first: dict[str, Any], second: dict[str, Any]) -> None:
    if first == second:
        return

    with pytest.raises(InvalidRequestError, match=r"^structured_output: expected exactly one of") as caught:
        StructuredOutput(**first, **second)

    assert caught.value.field == "structured_output"


def test_no_form_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^structured_output: expected exactly one of"):
        StructuredOutput()


@given(
    st.dictionaries(
        st.text(),
        st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)),
        max_size=4,
    )
)
def test_a_schema_is_the_same_as_text_and_as_a_mapping(schema: dict[str, Any]) -> None:
    as_mapping = StructuredOutput(json_schema=schema)

    for text in (json.dumps(schema), json.dumps(schema, indent=3, ensure_ascii=False)):
        assert StructuredOutput(json_schema=text) == as_mapping
    assert json.loads(as_mapping.source) == schema
    assert list(json.loads(as_mapping.source)) == list(schema)  # the order of names is the order of the answer


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"json_object": 1}, "json_object"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": "[]"}, "json_schema"),
        ({"json_schema": "true"}, "json_schema"),
        ({"json_schema": '{"a": NaN}'}, "json_schema"),
        ({"json_schema": {"a": float("inf")}}, "json_schema"),
        ({"json_schema": {"a": object()}}, "json_schema"),
        ({"json_schema": {"a": "\ud800"}}, "json_schema"),
        ({"json_schema": 5}, "json_schema"),
        ({"json_schema": "[" * 30_000}, "json_schema"),
        ({"json_schema": nested(MAX_SCHEMA_DEPTH + 1)}, "json_schema"),
        ({"json_schema": {"a": "x" * MAX_STRUCTURED_BYTES}}, "json_schema"),
        ({"json_schema": '{"a": ' + "9" * 5000 + "}"}, "json_schema"),
        ({"regex": ""}, "regex"),
        ({"regex": 7}, "regex"),
        ({"regex": "\ud800"}, "regex"),
        ({"regex": "é" * (MAX_STRUCTURED_BYTES // 2 + 1)}, "regex"),
        ({"grammar": b"start:"}, "grammar"),
        ({"choice": []}, "choice"),
        ({"choice": "yes"}, "choice"),
        ({"choice": {"yes": 1}}, "choice"),
        ({"choice": ["yes", ""]}, "choice"),
        ({"choice": ["yes", 1]}, "choice"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "choice"),
        ({"choice": ["a" * 40_000, "b" * 40_000]}, "choice"),
    ],
)
def test_malformed_and_too_large_forms_are_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutput(**fields)

    assert caught.value.field == f"structured_output.{field}"
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_schema_may_be_as_deep_as_the_bound_says() -> None:
    assert StructuredOutput(json_schema=nested(MAX_SCHEMA_DEPTH)).kind == "json_schema"


def test_choices_count_once() -> None:
    assert StructuredOutput(choice=["b", "a", "b"]) == StructuredOutput(choice=("b", "a"))


def test_settings_take_a_form_and_nothing_like_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"^structured_output: expected a StructuredOutput"):
        SamplingParams(structured_output={"regex": "a"})  # type: ignore[arg-type]


def test_a_beam_search_refuses_a_form() -> None:
    with pytest.raises(InvalidRequestError, match=r"^structured_output: expected none in a beam search"):
        BeamSearchParams(structured_output=StructuredOutput(regex="a"))  # type: ignore[arg-type]
