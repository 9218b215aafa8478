"""Every example in the documents runs, and every file they point to is there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.smollm2 import SMOLLM2, needs_smollm2

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TRANSLATED = ROOT / "README.zh.md"  # its examples are README.md's, to the letter (test_site.py)
FOREWORD = Path(sys.executable).parent / "foreword"
SERVED = "127.0.0.1:8000"
OPTIONAL = {"langchain_openai"}  # of the extra `docs`, which is not part of `test`
SLOW = {"bench", "demo", "serve", "replay", "lint", "why"}  # tested elsewhere; here their options are


def blocks(language: str) -> list[tuple[str, str]]:
    """Name and text of each fenced block of a language in all documents."""
    found = []
    for document in DOCUMENTS:
        if document == TRANSLATED:
            continue
        texts = re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)
        found += [(f"{document.relative_to(ROOT)}#{i}", text) for i, text in enumerate(texts)]
    return found


def commands() -> list[tuple[str, str]]:
    """Every `foreword …` line of a shell block, its comment cut off."""
    return [
        (name, line.split("  #")[0].strip())
        for name, text in blocks("sh")
        for line in text.splitlines()
        if line.startswith("foreword ")
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as a reader's would be: the model, the examples."""
    (tmp_path / "model.gguf").symlink_to(SMOLLM2)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def environment() -> dict[str, str]:
    return os.environ | {"FOREWORD_HOME": str(SMOLLM2.parent.parent), "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """Port of a server as the documents start it, on one that is free."""
    command = [str(FOREWORD), "serve", "-m", "smollm2", "--port", "0", "--json", "--quiet"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            yield str(urlsplit(json.loads(server.stdout.readline())["url"]).port)
        finally:
            server.terminate()


@needs_smollm2
@pytest.mark.parametrize(("name", "text"), blocks("python"), ids=[name for name, _ in blocks("python")])
def test_python_in_the_documents_runs(name: str, text: str, folder: Path, request: pytest.FixtureRequest) -> None:
    for module in OPTIONAL & set(re.findall(r"^from (\w+)", text, re.MULTILINE)):
        pytest.importorskip(module)
    if SERVED in text:
        text = text.replace(SERVED, f"127.0.0.1:{request.getfixturevalue('port')}")

    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, f"{name}\n{done.stderr}"


def run(folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [FOREWORD, *argv], cwd=folder, env=environment(), capture_output=True, text=True, check=False, input=""
    )


@cache
def helped(command: str) -> "subprocess.CompletedProcess[str]":
    """What a command says of itself: once, however many lines of the documents begin with it."""
    return run(ROOT, command, "--help")


@needs_smollm2
@pytest.mark.parametrize(("name", "line"), commands())
def test_commands_in_the_documents_run(name: str, line: str, folder: Path) -> None:
    _, command, *words = shlex.split(line)

    done = helped(command) if command in SLOW else run(folder, command, *words)

    assert done.returncode == 0, f"{name}: {line}\n{done.stderr}"


@needs_smollm2
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(("name", "text"), [block for block in blocks("sh") if block[1].startswith("curl ")])
def test_requests_by_curl_in_the_documents_are_answered(name: str, text: str, port: str) -> None:
    script = 'set -e\ncurl() { command curl --silent --show-error --fail-with-body "$@"; }\n'

    done = subprocess.run(
        ["bash", "-c", script + text.replace(SERVED, f"127.0.0.1:{port}")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, f"{name}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(("name", "text"), [block for block in blocks("sh") if "curl " in block[1]])
def test_answers_asked_for_by_curl_are_bounded(name: str, text: str) -> None:
    """Drawn at random, an answer without a bound goes on to the end of the context now and then: minutes."""
    requests = re.findall(r"^curl .*?(?=^curl |\Z)", text, re.DOTALL | re.MULTILINE)

    generating = [r for r in requests if re.search("/v1/(chat/completions|completions|messages|responses) ", r)]

    assert [r for r in generating if not re.search(r'"max_(output_)?tokens":', r)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", document.read_text())

    missing = [target for target in targets if not (document.parent / target).exists()]

    assert missing == []


def test_paths_in_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`((?:core|kv_cache|scheduler|ops|models|runner|engine|text|llm|csrc)/[\w/.]+\.\w+)`", text)

    missing = [n for n in named if not (ROOT / n).exists() and not (ROOT / "src" / "foreword" / n).exists()]

    assert named
    assert missing == []
