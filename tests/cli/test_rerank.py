"""`foreword rerank` ranks the lines of a file."""

from pathlib import Path

import pytest

from foreword import LLM
from tests.cli.conftest import Run
from tests.llm.rerank_model import rerank_model

LINES = ["the Loire is long", "bread is made of flour", "the Seine is a river"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(rerank_model(tmp_path_factory.mktemp("rerank-cli")))


def test_lines_come_best_first_with_their_scores(run: Run, path: str, tmp_path: Path) -> None:
    file = tmp_path / "passages.txt"
    file.write_text("\n\n".join(LINES))
    with LLM(path, threads=1) as llm:
        wanted = llm.rerank("which river", LINES)

    ran = run("rerank", "which river", str(file), "-m", path, "-t", "1", "--quiet")
    told = run("rerank", "which river", "-", "-m", path, "-t", "1", "--json", "--top-n", "2", stdin="\n".join(LINES))

    assert ran.out.splitlines() == [f"{r.relevance_score:.4f}  {LINES[r.index]}" for r in wanted.results]
    assert ran.err == ""
    results = [{"index": r.index, "relevance_score": r.relevance_score} for r in wanted.results]
    assert told.json["results"] == results[:2]


def test_people_are_told_what_was_read_once(run: Run, path: str) -> None:
    ran = run("rerank", "which river", "-", "-m", path, "-t", "1", stdin="\n".join(LINES))

    assert "read once" in ran.err
    assert len(ran.out.splitlines()) == 3


@pytest.mark.parametrize(
    ("argv", "text", "message"),
    [
        (["which", "-"], "\n \n", "expected a passage on each line"),
        (["", "-"], "a\n", "query"),
        (["which", "-", "--top-n", "-1"], "a\n", "top_n"),
        (["which", "missing.txt"], "", "missing.txt"),
    ],
)
def test_what_cannot_be_ranked_is_one_line(run: Run, path: str, argv: list[str], text: str, message: str) -> None:
    ran = run("rerank", *argv, "-m", path, "-t", "1", "--quiet", stdin=text)

    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1
