"""The documents as a whole: pictures are fresh, both READMEs say the same, the site builds, and every page is in it."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = (ROOT / name for name in ("README.md", "README.zh.md"))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_pictures_are_what_the_engine_draws_today() -> None:
    done = run("scripts/make_pictures.py", "--check")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/pictures").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_has_a_title_stays_in_its_frame_and_is_shown_somewhere(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    shapes = [shape for shape in root.iter() if {"x", "y"} <= shape.attrib.keys()]

    assert root[0].tag.endswith("title")
    assert root[0].text
    assert shapes
    for shape in shapes:
        right = float(shape.attrib["x"]) + float(shape.attrib.get("width", 0))
        assert 0 <= right <= width
        assert 0 <= float(shape.attrib["y"]) + float(shape.attrib.get("height", 0)) <= height
    assert any(picture.name in page.read_text() for page in (ROOT / "docs").rglob("*.md"))


def test_both_readmes_have_the_same_examples_links_figures_and_parts() -> None:
    english, chinese = ENGLISH.read_text(), CHINESE.read_text()

    for pattern in (
        r"^```.*?^```$",  # examples, to the letter
        r"\]\((?!README)([^)]+)\)",  # links
        r"^\| --- [^\n]*$",  # tables
        r"^#+ ",  # headings
        r"`([^`\n]+)`",  # names and commands
    ):
        found = [sorted(re.findall(pattern, text, re.DOTALL | re.MULTILINE)) for text in (english, chinese)]
        assert found[0] == found[1]
        assert found[0]
    tables = ["".join(line for line in text.splitlines() if line.startswith("|")) for text in (english, chinese)]
    figures = [re.findall(r"\d[\d,.]*", table) for table in tables]
    assert sorted(figures[0]) == sorted(figures[1])


def test_a_newcomer_reads_the_readme_in_one_sitting() -> None:
    assert len(ENGLISH.read_text().splitlines()) <= 140


def test_every_page_stands_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text()))

    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}

    assert pages <= listed


def test_every_page_is_on_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()

    missing = [p for p in (ROOT / "docs").rglob("*.md") if str(p.relative_to(ROOT / "docs")) not in index]

    assert missing == [ROOT / "docs/index.md"]


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra `docs`; `make docs` builds the site too")
def test_the_site_builds_and_every_link_and_anchor_in_it_leads_somewhere(tmp_path: Path) -> None:
    done = run("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "readme.zh.html").exists()
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"([^\"]+)|<link[^>]* href=\"([^\"]+)", page.read_text())
        assert not [source for pair in loaded for source in pair if re.match("https?:|//", source)], page
