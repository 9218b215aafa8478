"""Hypothesis profiles, turns of workers, and a temporary home for every test."""

import os
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.alone import Room
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give deep runs the hours they take: the usual limit ends what hangs. Among workers, alone ones come first."""
    if DEEP:
        for item in items:
            item.add_marker(pytest.mark.timeout(_DEEP_TIMEOUT_S))
    if _ROOM in config.stash:
        items.sort(key=_is_alone, reverse=True)  # stable; one worker has them all then, in a row


_FOLDER = pytest.StashKey[TemporaryDirectory[str]]()
_ROOM = pytest.StashKey[Room]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each worker of pytest-xdist where their common locks are."""
    if _FOLDER not in node.config.stash:
        node.config.stash[_FOLDER] = TemporaryDirectory(prefix="foreword-room-")
    node.workerinput["room"] = node.config.stash[_FOLDER].name


def pytest_configure(config: pytest.Config) -> None:
    """Open the locks in a worker; a process that runs every test by itself needs none."""
    if (given := getattr(config, "workerinput", None)) is not None:
        config.stash[_ROOM] = Room(Path(given["room"]))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no files behind."""
    if _ROOM in config.stash:
        config.stash[_ROOM].close()
    if _FOLDER in config.stash:
        config.stash[_FOLDER].cleanup()


def _is_alone(item: pytest.Item) -> bool:
    return any(item.iter_markers("alone")) or any(item.iter_markers("deep"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the timeout: waiting for one's turn is no part of a test
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Run a test beside those of the other workers, or alone where it is marked so."""
    if _ROOM not in item.config.stash:
        return (yield)
    keep = nextitem is not None and _is_alone(nextitem)
    with item.config.stash[_ROOM].taken(alone=_is_alone(item), keep=keep):
        return (yield)


@pytest.fixture(autouse=True)
def _temporary_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in tuple(os.environ):
        if name.startswith("FOREWORD_"):
            monkeypatch.delenv(name)
