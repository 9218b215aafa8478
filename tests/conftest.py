"""Hypothesis profiles, and a temporary home for every test."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.profile import DEEP

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=_QUIET)
settings.register_profile(
    "ci", max_examples=100, stateful_step_count=50, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "deep", max_examples=400, stateful_step_count=200, deadline=None, suppress_health_check=_QUIET
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
_DEEP_TIMEOUT_S = 4 * 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give deep runs the hours they take: the usual limit is there to end what hangs."""
    if DEEP:
        for item in items:
            item.add_marker(pytest.mark.timeout(_DEEP_TIMEOUT_S))


@pytest.fixture(autouse=True)
def _temporary_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in tuple(os.environ):
        if name.startswith("FOREWORD_"):
            monkeypatch.delenv(name)
