"""What a server imports before its first answer: four fifths of its start are imports, and each new one is paid by all.

Modules are counted, not seconds, so the result is the same on every machine.
"""

import gc
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from foreword.cli.session import collector_held
from foreword.core.errors import ForewordError

# Whoever adds to these makes every start longer. The first three read the arguments.
LIBRARIES = {"typer", "annotated_doc", "shellingham", "numpy", "tokenizers", "msgspec", "typing_extensions"}
WEB_LIBRARIES = {"starlette", "uvicorn", "anyio", "sniffio", "h11", "click"}
LATER = {
    "foreword.llm.llm": "offline use",
    "foreword.llm.beam_search": "offline use",
    "foreword.models.pull": "fetching models",
    "foreword.server.metrics_page": "the first scrape",
    "foreword.server.openapi.document": "the first reader of the document",
    "foreword.text.template_program": "the first conversation",
    "importlib.metadata": "the version, in reports",
    "zipfile": "fetching models",
}


@pytest.fixture(scope="module")
def imported(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Modules a served model had imported when its first request, of token ids, was answered."""
    log = tmp_path_factory.mktemp("start") / "imports"  # a pipe would fill up
    command = [sys.executable, "-v", "-m", "foreword", "serve", tiny, "--port", "0", "--json"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--served-model-name", "tiny", "--kv-memory", "4MiB"], stdout=subprocess.PIPE, stderr=stderr
        )
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            _ask(url)
        finally:
            process.kill()
            process.communicate()
    return _modules(log)


def test_the_first_answer_waits_for_no_library_but_those_that_make_it(imported: set[str]) -> None:
    installed = {module.partition(".")[0] for module in imported} - set(sys.stdlib_module_names)
    private = {name for name in installed if name.startswith("_")}  # of the interpreter, of an editable install

    assert installed - private - {"foreword"} <= LIBRARIES | WEB_LIBRARIES


def test_the_first_answer_waits_for_nothing_that_another_use_needs(imported: set[str]) -> None:
    assert {"numpy", "starlette.applications", "foreword.server.serving"} <= imported  # the list is one
    assert not LATER.keys() & imported


def _ask(url: str) -> None:
    body = {"model": "tiny", "prompt": [1], "max_tokens": 1}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 1


def _modules(log: Path) -> set[str]:
    """Names in what `-v` wrote, which tells of imports that succeeded alone."""
    return set(re.findall(r"^import '([\w.]+)'", log.read_text(errors="replace"), re.MULTILINE))


def test_the_collector_is_held_while_a_server_starts_and_no_longer() -> None:
    with collector_held():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.unfreeze()

    with pytest.raises(ForewordError), collector_held():
        raise ForewordError("no start")
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_numpy_starts_no_threads_beside_the_kernels() -> None:
    code = """
import os
from foreword.cli.options import ModelOptions
ModelOptions().engine_options()
import numpy
print(len(os.listdir("/proc/self/task")))
"""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)

    assert int(done.stdout) == 1
