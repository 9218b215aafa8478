"""Patterns of model files: those in use pass, those that can blow up don't."""

import pytest

from foreword.text.json_tokenizer import _walk
from foreword.text.pretokenizers import PRE_TOKENIZERS
from foreword.text.regex_guard import pattern_fault


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pattern_of_ours_passes(name: str) -> None:
    for step in _walk(PRE_TOKENIZERS[name].chain):
        if "Regex" in step:
            assert pattern_fault(step["Regex"]) is None


@pytest.mark.parametrize(
    "pattern",
    [r"\d{1,3}(?=(?:\d{3})*\b)", r"(?=(\d{3})+(?!\d))", r"\s+$", r"[[\p{L}]&&[^a-z]]+", r"(?<!a)b", r"[\]\[]+|a?"],
)
def test_harmless_patterns_pass(pattern: str) -> None:
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(a|a)*b",
        r"(a*)*",
        r"(a*?)+b",
        r"([a-z]+)*1",
        r"(x+x+)+y",
        r"(a?){50}a{50}",
        r"((a{0,999}){0,999}){0,999}",
        r"a{2,}{3,}",
        r"a*a*a*b",
        r"(?:a*a*|b)a*c",
        r".{1,100000}",
        r"\p{L}{5000}",
        r"(a)\1+",
        r"(?i)a",
        "(" * 4000,
        "(a",
        "a)",
        "a" * 5000,
    ],
)
def test_patterns_that_can_blow_up_are_refused(pattern: str) -> None:
    assert pattern_fault(pattern)
