"""Where events may be published: this machine alone, unless others are allowed."""

import pytest

from foreword.core.errors import InvalidRequestError
from foreword.events.options import EventOptions, event_options


@pytest.mark.parametrize(
    ("endpoint", "stream", "replay"),
    [
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"),
        ("tcp://localhost:5557", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"),
        ("tcp://[::1]:5557", "tcp://[::1]:5557", "tcp://[::1]:5558"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
        ("tcp://127.9.9.9:*", "tcp://127.9.9.9:*", "tcp://127.9.9.9:*"),
        ("ipc:///run/kv", "ipc:///run/kv", "ipc:///run/kv-replay"),
    ],
)
def test_replay_stands_beside_the_stream(endpoint: str, stream: str, replay: str) -> None:
    assert event_options(endpoint).bind_endpoints() == (stream, replay)


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://eth0:5557", "tcp://10.0.0.1:1", "tcp://a.b:1"],
)
def test_an_address_that_others_can_reach_is_refused_unless_allowed(endpoint: str) -> None:
    with pytest.raises(InvalidRequestError, match="this machine alone"):
        EventOptions(endpoint=endpoint)
    with pytest.raises(InvalidRequestError, match="replay_endpoint: expected an address of this machine alone"):
        EventOptions(endpoint="tcp://127.0.0.1:5557", replay_endpoint=endpoint)

    assert EventOptions(endpoint=endpoint, allow_remote=True).bind_endpoints()[0] == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "5557", "127.0.0.1:5557", "inproc://kv", "ipc://", "tcp://:1", "tcp://a;tcp://b:1", "tcp://127.0.0.1"),
        *("tcp://127.0.0.1:-1", "tcp://127.0.0.1:1\n", "tcp://127.0.0.1:65536", 7, b"x"),
        "tcp://127.0.0.1:65535",  # no port after it for replay
    ],
)
def test_what_is_no_endpoint_is_refused(endpoint: object) -> None:
    with pytest.raises(InvalidRequestError, match="kv_events"):
        event_options(endpoint)


@pytest.mark.parametrize(
    "wrong",
    [{"form": "json"}, {"topic": "x" * 257}, {"topic": 3}, {"replay_endpoint": "tcp://127.0.0.1:5557"}],
)
def test_other_values_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="kv_events"):
        EventOptions(endpoint="tcp://127.0.0.1:5557", **wrong)  # type: ignore[arg-type]
