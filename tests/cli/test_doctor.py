from pathlib import Path

import numpy as np
import pytest

from foreword.cli.environment import models_folder
from foreword.cli.self_test import TOLERANCE, largest_difference
from foreword.models.catalogue import CATALOGUE
from foreword.ops.backend import F32, PackedMatrix
from foreword.ops.cpu import CpuBackend, available_instruction_sets
from foreword.ops.reference import ReferenceBackend
from tests.cli.conftest import Run


def test_every_check_is_one_line_with_a_verdict(run: Run, tiny: str) -> None:
    ran = run("doctor", "--model", tiny)

    assert ran.code == 0
    assert all(line.split()[0] in ("ok", "warn") for line in ran.out.splitlines()), ran.out
    for check in ("kernels", "self-test", "threads", "model", "memory", "KV cache", "paging", "prefix cache", "engine"):
        assert check in ran.out


def test_json_lists_the_same_checks(run: Run, tiny: str) -> None:
    report = run("doctor", "--model", tiny, "--json").json

    checks = report["checks"]
    assert report["ok"] is True
    assert isinstance(checks, list)
    assert {"check", "status", "detail", "cure"} == set(checks[0])


def test_a_model_not_pulled_is_something_to_fix(run: Run) -> None:
    ran = run("doctor")

    assert ran.code == 1
    assert "run: foreword pull smollm2" in ran.out


def test_a_pulled_model_that_is_damaged_is_to_be_pulled_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREWORD_HOME", str(tmp_path))
    models_folder().mkdir()
    (models_folder() / CATALOGUE["smollm2"].file_name).write_bytes(b"GGUF")

    ran = run("doctor")

    assert ran.code == 1
    assert "run: foreword pull smollm2, which mends a damaged file" in ran.out


def test_a_damaged_file_named_by_its_path_is_to_be_replaced(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")

    ran = run("doctor", "--model", str(path))

    assert ran.code == 1
    assert "another with --model" in ran.out


def test_a_cache_that_is_off_is_a_warning(run: Run, tiny: str) -> None:
    ran = run("doctor", "--model", tiny, "--kv-cache", "off")

    assert ran.code == 0
    assert "warn KV cache" in ran.out


def test_an_instruction_set_this_machine_lacks_is_something_to_fix(run: Run, tiny: str) -> None:
    ran = run("doctor", "--model", tiny, "--instruction-set", "sse9")

    assert ran.code == 1
    assert "fix  kernels" in ran.out


@pytest.mark.parametrize("instruction_set", available_instruction_sets())
def test_the_self_test_passes_on_every_instruction_set_here(instruction_set: str) -> None:
    assert largest_difference(CpuBackend(instruction_set=instruction_set)) <= TOLERANCE


class _WrongBackend(ReferenceBackend):
    """Forgets one input of every product."""

    def linear(
        self, x: F32, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None, accumulate: bool = False
    ) -> None:
        damaged = np.array(x)
        damaged[:, 5] = 0
        super().linear(damaged, matrix, out, bias=bias, accumulate=accumulate)


def test_the_self_test_fails_on_wrong_kernels() -> None:
    assert largest_difference(_WrongBackend()) > 10 * TOLERANCE
