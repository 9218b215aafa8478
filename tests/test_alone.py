"""Who is marked `alone` runs alone, and gets to run."""

import threading
from pathlib import Path

import pytest

from tests.alone import Room

PATIENCE_S = 20


class Worker:
    """Takes the room as another worker would, and stays until told to leave."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        self.room, self.alone = Room(folder), alone
        self.inside, self.leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self.room.taken(alone=self.alone):
            self.inside.set()
            self.leave.wait()

    def end(self) -> None:
        self.leave.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.room.close()


def test_others_share_the_room(tmp_path: Path) -> None:
    workers = [Worker(tmp_path, alone=False) for _ in range(2)]

    assert all(worker.inside.wait(PATIENCE_S) for worker in workers)
    for worker in workers:
        worker.end()


@pytest.mark.parametrize("second", [False, True])
def test_nobody_enters_while_one_is_alone(tmp_path: Path, second: bool) -> None:
    first = Worker(tmp_path, alone=True)
    assert first.inside.wait(PATIENCE_S)
    other = Worker(tmp_path, alone=second)

    assert not other.inside.wait(0.1)
    first.end()
    assert other.inside.wait(PATIENCE_S)
    other.end()


def test_one_who_waits_to_be_alone_is_not_overtaken(tmp_path: Path) -> None:
    first = Worker(tmp_path, alone=False)
    assert first.inside.wait(PATIENCE_S)
    alone = Worker(tmp_path, alone=True)
    assert not alone.inside.wait(0.1)  # it stands in the door
    later = Worker(tmp_path, alone=False)

    assert not later.inside.wait(0.1)
    first.end()
    assert alone.inside.wait(PATIENCE_S)
    assert not later.inside.is_set()
    alone.end()
    assert later.inside.wait(PATIENCE_S)
    later.end()


def test_the_room_is_kept_between_two_who_are_alone_and_left_before_one_who_is_not(tmp_path: Path) -> None:
    room = Room(tmp_path)
    with room.taken(alone=True, keep=True):
        other = Worker(tmp_path, alone=False)

    assert not other.inside.wait(0.1)
    with room.taken(alone=True, keep=True):
        assert not other.inside.is_set()
    with room.taken(alone=False):
        assert other.inside.wait(PATIENCE_S)
    other.end()
    room.close()
