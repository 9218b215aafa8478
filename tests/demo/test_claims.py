"""Claims that need no model hold to the number; claims of a model hold on the real one; the page needs nothing else."""

import re
from html.parser import HTMLParser

import pytest

from foreword.demo import counted
from foreword.demo.claim import Bar, Claim
from foreword.demo.demo import Stage, run_demo
from foreword.demo.page import page
from tests.smollm2 import SMOLLM2, needs_smollm2

TIMED = "A shared prefix is prefilled once"


@pytest.mark.parametrize(
    "claim",
    [counted.naive_loop(), counted.step_cost(), counted.kv_bytes(), counted.llama_2_70b(), *counted.paging()],
    ids=lambda claim: claim.claim[:30],
)
def test_what_is_counted_holds(claim: Claim) -> None:
    assert claim.ok, claim


def test_steps_are_counted_as_they_are_planned() -> None:
    assert counted.run_steps(3, 3) == [(3, 6), (1, 4), (1, 5)]
    assert counted.run_steps(3, 3, recompute_all=True) == [(3, 6), (4, 10), (5, 15)]


def test_a_fit_finds_the_exponent() -> None:
    assert counted.fitted([7.0 * n**3 for n in counted.SWEEP]) == pytest.approx(3)


@needs_smollm2
def test_every_claim_holds_on_the_real_model() -> None:
    begun: list[str] = []
    texts: list[str] = []
    stage = Stage(begun.append, lambda delta: texts.append(delta.text), lambda asked: None)

    claims = list(run_demo(SMOLLM2, stage, threads=2))

    assert len(claims) == 12
    # What is timed may be off on a machine that does something else at that moment; what is counted may not.
    assert [claim for claim in claims if not claim.ok and not claim.claim.startswith(TIMED)] == []
    assert "".join(texts).strip()
    assert len(begun) == 5


class Tags(HTMLParser):
    """Counts tags and what is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect"):
            self.open.append(tag)
        self.loaded += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "style", "onload")]

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    hostile = Claim("<script>a</script>", 'b"&', "c", False, [Bar("<x>", 0, "0"), Bar("y", 0, "0")], "d<")

    text = page([counted.naive_loop(), hostile], "m & <n>")

    tags = Tags()
    tags.feed(text)
    assert (tags.open, tags.loaded) == ([], [])
    assert "<script" not in text
    assert "1 of 2 hold" in text
    assert not re.search(r"url\(|@import|https?:", text)
