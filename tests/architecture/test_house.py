"""The house stays in order: who may import what, one version, nothing that runs what it reads, no file too large."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import foreword

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "foreword").rglob("*.py"))


@cache
def names_in(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Names a file imports, in full, and names it calls."""
    imported: set[str] = set()
    called: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
    return frozenset(imported), frozenset(called)


def imports(path: Path) -> frozenset[str]:
    return names_in(path)[0]


def users_of(prefix: str) -> set[str]:
    return {
        str(path.relative_to(ROOT / "src" / "foreword"))
        for path in SOURCES
        if any(name == prefix or name.startswith(prefix + ".") for name in imports(path))
    }


def test_only_the_cpu_backend_knows_the_native_module() -> None:
    assert users_of("foreword._native") == {"ops/cpu.py"}


def test_only_the_publisher_of_events_knows_zeromq() -> None:
    assert users_of("zmq") == {"events/publisher.py", "events/replay.py"}


def test_only_the_bindings_include_nanobind() -> None:
    including = {p.parent.name for p in (ROOT / "csrc").rglob("*.[ch]*") if "nanobind" in p.read_text()}

    assert including == {"bindings"}


def test_records_are_structs_where_no_field_needs_more() -> None:
    # a key that must not be printed, long fields that would be, one worked out from the others
    assert users_of("dataclasses") == {"load/wire.py", "lint/lint.py", "demo/claim.py", "lint/request.py"}


@pytest.mark.parametrize("library", ["torch", "transformers", "pickle", "marshal", "shelve", "dill", "yaml"])
def test_what_we_never_import(library: str) -> None:
    assert users_of(library) == set()


@pytest.mark.parametrize("call", ["eval", "exec", "compile", "__import__"])
def test_nothing_read_is_ever_run(call: str) -> None:
    callers = [str(path.relative_to(ROOT)) for path in SOURCES if call in names_in(path)[1]]

    assert callers == []


def test_numpy_never_unpickles() -> None:
    assert not [path for path in SOURCES if "allow_pickle=True" in path.read_text()]


def test_only_the_command_line_reads_the_environment() -> None:
    readers = {
        path.relative_to(ROOT / "src" / "foreword").parts[0]
        for path in SOURCES
        if re.search(r"os\.environ|os\.getenv|sys\.argv", path.read_text())
    }

    assert readers <= {"cli"}


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert foreword.__version__ == project["version"]


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in foreword.__all__:
        value = getattr(foreword, name)
        assert name == "__version__" or value.__doc__


def test_files_stay_within_their_budget() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "size"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_base_install_is_without_heavy_things() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[; ]", requirement)[0].lower() for requirement in project["dependencies"]}
    imported = {name.split(".")[0] for path in SOURCES for name in imports(path)}
    module_of = {"prometheus-client": "prometheus_client"}

    assert not names & {"torch", "transformers", "scipy", "pandas"}
    unused = {name for name in names if module_of.get(name, name) not in imported}
    assert unused == set(), "a dependency nobody imports"
