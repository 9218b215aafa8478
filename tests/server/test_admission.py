"""The door under pressure: no more wait than will be served in time, by a clock that the test moves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import QueueFullError
from foreword.server.admission import Admission, Ticket
from foreword.server.limits import Limits
from foreword.server.pace import ENOUGH, PRESSED, Pace


class Server:
    """Runs `width` requests at a time, each for `width / rate` seconds, behind a door, by a clock of its own."""

    def __init__(self, rate: float, *, width: int = 4, **limits: float) -> None:
        self.now = 0.0
        self.rate = rate
        self.width = width
        self.num_free = width  # after the last step, as an engine tells it
        self.door = Admission(
            Limits(**limits),  # type: ignore[arg-type]  # numbers, as it wants
            lambda: self.now,
            num_startable=lambda: self.num_free,
        )
        self.waiting: list[tuple[float, Ticket]] = []
        self.running: list[tuple[float, Ticket]] = []
        self.waits: list[float] = []
        self.refused: list[int | None] = []

    def ask(self) -> None:
        try:
            self.waiting.append((self.now, self.door.enter()))
        except QueueFullError as error:
            self.refused.append(error.retry_after_s)

    def go_on(self, seconds: float, asked_a_second: float) -> None:
        """Let time pass, a twentieth of a second at a time, while so many ask."""
        for step in range(round(seconds * 20)):
            for _ in range(int((step + 1) * asked_a_second / 20) - int(step * asked_a_second / 20)):
                self.ask()
            self.now += 0.05
            for end, ticket in [r for r in self.running if r[0] <= self.now]:
                self.running.remove((end, ticket))
                ticket.end()
            while self.waiting and len(self.running) < self.width:
                came, ticket = self.waiting.pop(0)
                self.waits.append(self.now - came)
                ticket.leave()
                self.running.append((self.now + self.width / self.rate, ticket))
            self._step_ended()

    def everybody_leaves(self) -> None:
        for _, ticket in self.waiting:
            ticket.leave()
        self.waiting.clear()
        self.running.clear()
        self._step_ended()

    def _step_ended(self) -> None:
        self.num_free = 0 if self.waiting else self.width - len(self.running)


@pytest.mark.parametrize("rate", [0.4, 1.65, 5.0])
def test_whoever_is_let_in_is_started_in_time_when_ten_times_too_many_ask(rate: float) -> None:
    server = Server(rate, unmeasured_requests=16)

    server.go_on(400, 10 * rate)

    assert max(server.waits) < 60
    assert len(server.waits) > 0.95 * 400 * rate  # and nobody is refused for whom there was time
    assert server.refused
    assert all(told is not None and 1 <= told <= 60 for told in server.refused)


def test_an_empty_server_that_was_asked_now_and_then_takes_a_burst() -> None:
    server = Server(5.0)
    server.go_on(300, 0.2)

    for _ in range(96):
        server.ask()

    assert not server.refused
    server.ask()
    assert server.refused == [1]


def test_a_queue_that_stands_still_is_closed_but_for_a_few() -> None:
    server = Server(5.0)
    for _ in range(50):
        server.ask()

    server.now += 25
    server.ask()

    assert len(server.refused) == 1
    assert server.door.num_places == PRESSED


def test_a_pace_is_forgotten_when_nobody_has_waited_for_as_long_as_one_may() -> None:
    server = Server(0.5, unmeasured_requests=50)
    server.go_on(60, 5)
    assert server.door.num_places < 20
    while server.waiting:
        server.go_on(10, 0)
    assert server.door.num_places < 20

    server.go_on(61, 0)

    assert server.door.num_places == 50


def test_whoever_can_start_at_once_is_let_in_however_slow_the_server_was() -> None:
    server = Server(0.2, width=16)
    server.go_on(200, 2)
    assert server.door.num_places < 16
    server.everybody_leaves()
    server.refused.clear()

    for _ in range(16):
        server.ask()

    assert not server.refused
    server.ask()
    assert len(server.refused) == 1


def test_the_flag_bounds_it_however_fast_the_server_is() -> None:
    server = Server(100.0, max_queued_requests=20)
    server.go_on(30, 1000)

    assert server.door.num_places == 20


MEMORY = 60.0
CLOSE = 1e-6


class PlainPace:
    """Keeps when each request ended, in seconds under pressure, and weighs them anew whenever it is asked."""

    def __init__(self) -> None:
        self.pressed = 0.0
        self.ends: list[float] = []

    def weights(self) -> tuple[float, float]:
        """Of the ends, and of the seconds in which they were."""
        constant = MEMORY / 2
        ended = sum(math.exp(-(self.pressed - end) / constant) for end in self.ends)
        return ended, constant * (1 - math.exp(-self.pressed / constant))


moments = st.just(0.0) | st.floats(1e-6, 3) | st.floats(1e-6, 70)


@given(
    st.integers(0, 2 * PRESSED),
    st.lists(st.tuples(moments, st.sampled_from(["come", "start", "end", "end", "end"])), max_size=200),
)
def test_the_pace_is_what_ended_by_the_time_it_took_under_pressure_the_latest_most(
    waiting: int, events: list[tuple[float, str]]
) -> None:
    now = calm_since = 0.0
    pace, plain = Pace(MEMORY, lambda: now), PlainPace()
    pace.waiting(waiting)
    for passed, event in events:
        now += passed
        if waiting >= PRESSED:
            plain.pressed += passed
        elif now - calm_since > MEMORY:
            plain = PlainPace()
        if event == "end":
            pace.ended()
            plain.ends += [plain.pressed] if waiting >= PRESSED else []
        else:
            before, waiting = waiting, max(0, waiting + (1 if event == "come" else -1))
            calm_since = now if before >= PRESSED > waiting else calm_since
            pace.waiting(waiting)

        rate, (ended, seconds) = pace.per_second(), plain.weights()
        if rate is None:
            assert seconds == 0 or (ended < ENOUGH + CLOSE and seconds < MEMORY / 4 + CLOSE)
        else:
            assert ended > ENOUGH - CLOSE or seconds > MEMORY / 4 - CLOSE
            assert rate == pytest.approx(ended / seconds)
