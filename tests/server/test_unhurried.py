"""Sockets left alone while there is no place for anybody: for a bounded time, nobody's loss, and nothing else waits."""

import contextlib
import http.client
import json
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import QueueFullError
from foreword.server import unhurried
from foreword.server.admission import Admission
from foreword.server.limits import Limits
from foreword.server.unhurried import REST_S, UnhurriedSelector
from tests.server.conftest import LiveServer, StartServer
from tests.server.test_early_refusal import answer_to, request
from tests.server.test_protocol import closed_within, connect
from tests.server.wire import completion_body, send, until

ENDLESS_S = 600.0
WHOLE = request("/v1/completions", completion_body("hi", max_tokens=2))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """A selector with one socket of the loop's own and two of clients, by a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.selector = UnhurriedSelector(self.clock)
        self.pairs = [socket.socketpair() for _ in range(3)]
        for number, (reader, _) in enumerate(self.pairs):
            self.selector.register(reader, selectors.EVENT_READ, number)
            if number == 0:
                self.selector.settle()

    def ready(self, timeout: float | None = 0) -> set[int]:
        return {key.data for key, _ in self.selector.select(timeout)}

    def close(self) -> None:
        self.selector.close()
        for pair in self.pairs:
            for end in pair:
                end.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    found = Scene()
    yield found
    found.close()


STEPS = st.one_of(
    st.just("rest"), st.just("wake"), st.sampled_from([0, 1, 2]), st.sampled_from([0.4 * REST_S, REST_S, 3 * REST_S])
)


@given(st.lists(STEPS, max_size=30))
def test_what_can_wait_is_told_unless_it_rests_and_the_loops_own_always(steps: list[Any]) -> None:
    scene = Scene()
    written: set[int] = set()
    until_s = 0.0
    try:
        for step in steps:
            if step == "rest":
                scene.selector.rest()
                until_s = until_s if scene.clock.now < until_s else scene.clock.now + REST_S
            elif step == "wake":
                scene.selector.wake()
                until_s = 0.0
            elif isinstance(step, int):
                scene.pairs[step][1].send(b".")
                written.add(step)
            else:
                scene.clock.now += step
            assert scene.ready() == (written & {0} if scene.clock.now < until_s else written)
    finally:
        scene.close()


def test_a_timer_is_not_late_and_the_loops_own_is_told_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unhurried, "REST_S", ENDLESS_S)
    scene.pairs[1][1].send(b".")
    scene.selector.rest()
    began = time.monotonic()
    assert scene.ready(0.05) == set()
    assert 0.04 < time.monotonic() - began < 5
    scene.pairs[0][1].send(b".")
    assert scene.ready(None) == {0}


def test_a_rest_ends_within_a_longer_wait(scene: Scene) -> None:
    scene.selector = UnhurriedSelector()
    scene.selector.settle()
    scene.selector.register(scene.pairs[1][0], selectors.EVENT_READ, 1)
    scene.pairs[1][1].send(b".")
    for timeout in (None, 100 * REST_S):
        scene.selector.rest()
        began = time.monotonic()
        assert scene.ready(timeout) == {1}
        assert REST_S * 0.9 <= time.monotonic() - began < 5


def test_the_loops_own_can_change_and_go(scene: Scene) -> None:
    own = scene.pairs[0][0]
    scene.pairs[0][1].send(b".")
    scene.selector.rest()
    scene.selector.modify(own, selectors.EVENT_WRITE, "changed")
    assert [(key.data, events) for key, events in scene.selector.select(0)] == [("changed", selectors.EVENT_WRITE)]
    scene.selector.unregister(own)
    assert scene.ready() == set()


def test_the_door_tells_of_full_only_where_nobody_could_be_let_in() -> None:
    told: list[str] = []
    door = Admission(Limits(max_queued_requests=4))
    door.watch(lambda: told.append("full"), lambda: told.append("free"))
    tickets = [door.enter(b"alice"), door.enter(b"alice")]
    with contextlib.suppress(QueueFullError):
        door.enter(b"alice")  # has her half
    assert told == []
    tickets += [door.enter(b"bob"), door.enter(b"carol")]
    for name in (b"alice", b"dave"):
        with pytest.raises(QueueFullError):
            door.enter(name)
    assert told == ["full", "full"]
    tickets[0].leave()
    assert told == ["full", "full", "free"]


@pytest.fixture
def resting(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LiveServer, Any]]:
    """A full server that has just refused somebody and would rest for good, and the ticket of its one place."""
    live = start_server(limits=Limits(max_queued_requests=1))
    ticket = live.service.admission.enter()
    monkeypatch.setattr(unhurried, "REST_S", ENDLESS_S)
    with connect(live) as connection:
        connection.sendall(WHOLE)
        assert b" 429 " in answer_to(connection)
        yield live, ticket


def test_a_free_place_is_given_at_once(resting: tuple[LiveServer, Any]) -> None:
    live, ticket = resting
    with connect(live) as connection:
        connection.sendall(WHOLE)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(30)
        live.loop.call_soon_threadsafe(ticket.leave)
        assert b" 200 " in answer_to(connection)
    live.check_idle()


def test_tokens_go_out_meanwhile(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream under way when the rest begins comes to its end."""
    live = start_server(limits=Limits(max_queued_requests=1), max_num_seqs=8)
    asking = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
    body = completion_body("hi", stream=True, max_tokens=300, ignore_eos=True)
    asking.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = asking.getresponse()
    assert answer.readline().startswith(b"data: ")
    ticket = live.service.admission.enter()
    monkeypatch.setattr(unhurried, "REST_S", ENDLESS_S)
    live.loop.call_soon_threadsafe(live.loop.rest)
    assert b"[DONE]" in answer.read()
    asking.close()
    live.loop.call_soon_threadsafe(ticket.leave)


def test_a_server_that_rests_ends_when_told(resting: tuple[LiveServer, Any]) -> None:
    live, ticket = resting
    began = time.monotonic()
    live.loop.call_soon_threadsafe(live.server.drain)
    live.loop.call_soon_threadsafe(ticket.leave)
    until(lambda: live.server.should_exit)
    assert time.monotonic() - began < 10


def test_a_flood_is_refused_many_at_a_time_and_health_is_told_meanwhile(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each on a connection of its own, some closed by themselves, all whole, each with its own id."""
    live = start_server(limits=Limits(max_queued_requests=1))
    ticket = live.service.admission.enter()
    looks: list[float] = []
    select = UnhurriedSelector.select

    def select_noted(self: UnhurriedSelector, timeout: float | None = None) -> Any:
        found = select(self, timeout)
        if any(key.data and key.fd != live.loop._ssock.fileno() for key, _ in found):  # type: ignore[attr-defined]
            looks.append(time.monotonic())
        return found

    monkeypatch.setattr(UnhurriedSelector, "select", select_noted)
    number, waits, ids = 120, [], set()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(live)) for _ in range(number)]
        until(lambda: len(live.server.server_state.connections) == number)
        looks.clear()
        for index, connection in enumerate(connections):
            more = ["Connection: close"] if index % 4 == 0 else []
            connection.sendall(request("/v1/completions", completion_body("hi"), f"X-Request-Id: id-{index}", *more))
            if index % 40 == 0:
                began = time.monotonic()
                assert send(live.port, "GET", "/health").status == 200
                waits.append(time.monotonic() - began)
            time.sleep(0.002)
        for index, connection in enumerate(connections):
            answer = answer_to(connection)
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"retry-after: " in answer
            ids.add(f"x-request-id: id-{index}\r\n".encode() in answer)
            if index % 4 == 0:
                assert closed_within(connection, 5)
    assert ids == {True}
    assert len(looks) < number / 2
    assert max(waits) < 2  # twice the rest, and what a busy machine adds
    live.loop.call_soon_threadsafe(ticket.leave)
    until(lambda: live.service.admission.num_requests == 0)
