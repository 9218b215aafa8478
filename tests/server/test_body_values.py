"""Counting a JSON text's values without decoding it equals counting them in what was decoded."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foreword.server import body_values
from foreword.server.body_values import check_values
from foreword.server.errors import ApiError

TEXT = st.text(st.sampled_from('"\\[{,]}:a\n\u00e9\ud7ff'))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)


def counted(value: Any) -> tuple[int, int]:
    """Objects, lists and fields; and the commas between members."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [counted(member) for member in (value.values() if isinstance(value, dict) else value)]
    fields = len(value) if isinstance(value, dict) else 0
    return 1 + fields + sum(p for p, _ in inner), max(0, len(value) - 1) + sum(c for _, c in inner)


@pytest.mark.parametrize("ascii_only", [True, False])
@example(value='\\"[[[{{{,,,')
@example(value=["\\", "[", "\\\\", '"'])
@given(value=VALUES)
def test_the_count_is_that_of_the_decoded_value(ascii_only: bool, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    parts, commas = counted(value)

    def check(max_parts: int, max_values: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(body_values, "MAX_PARTS", max_parts)
            patch.setattr(body_values, "MAX_VALUES", max_values)
            check_values(text)

    check(parts, parts + commas)
    if parts:
        with pytest.raises(ApiError, match=f"{parts} lists, objects and fields"):
            check(parts - 1, parts + commas)
        with pytest.raises(ApiError, match=f"{parts + commas} values"):
            check(parts, parts + commas - 1)


@given(
    text=st.binary(max_size=200)
    | st.binary(max_size=200).map(lambda b: b.translate(bytes(b'"\\[{,'[i % 5] for i in range(256))))
)
def test_what_is_no_json_is_counted_without_an_error(text: bytes) -> None:
    check_values(text)
