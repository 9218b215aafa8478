"""The publisher over real sockets: order, gaps, replay, and clients that misbehave."""

import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from foreword.core.errors import ForewordError
from foreword.core.types import TokenId
from foreword.events.mirror import EventMirror
from foreword.events.opening import open_publisher
from foreword.events.options import EventOptions
from foreword.kv_cache.events import BlockRemoved, BlockStored, CacheEvent
from foreword.kv_cache.prefix_cache import BlockHash

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed; pip install 'foreword[events]'")

from foreword.events.publisher import ZmqEventPublisher  # noqa: E402  # needs pyzmq
from foreword.events.replay import MAX_QUEUED_A_CLIENT, ReplayBuffer  # noqa: E402

FREE = EventOptions(endpoint="tcp://127.0.0.1:*", topic="kv@pod@model")
END = (2**64 - 1).to_bytes(8, "big")


def block(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "big"))


def event(number: int, num_tokens: int = 16) -> CacheEvent:
    """The number-th of a stream that stores block after block and removes each ten later."""
    if number % 2 and number > 20:
        return BlockRemoved((block(number - 21),))
    return BlockStored((block(number),), None, (TokenId(number),) * num_tokens, num_tokens, b"")


@pytest.fixture
def start() -> Iterator[Callable[..., ZmqEventPublisher]]:
    publishers: list[ZmqEventPublisher] = []

    def started(**settings: Any) -> ZmqEventPublisher:
        publishers.append(ZmqEventPublisher(FREE, **settings))
        publishers[-1].start()
        return publishers[-1]

    yield started
    for publisher in publishers:
        publisher.close()


class Clients:
    """Sockets of a test, closed at its end."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.sockets: list[Any] = []


@pytest.fixture
def clients() -> Iterator[Clients]:
    clients = Clients()
    yield clients
    for sock in clients.sockets:
        sock.close(linger=0)
    clients.context.term()


def connect(clients: Clients, kind: int, endpoint: str, **options: int) -> Any:
    sock = clients.context.socket(kind)
    clients.sockets.append(sock)
    for name, value in options.items():
        sock.set(getattr(zmq, name), value)
    if kind == zmq.SUB:
        sock.subscribe(b"")
    sock.set(zmq.RCVTIMEO, 10_000)
    sock.connect(endpoint)
    return sock


def publish(publisher: ZmqEventPublisher, numbers: range) -> None:
    for number in numbers:
        publisher.publish([(number, event(number))])


def subscribed(clients: Clients, publisher: ZmqEventPublisher, first: int = 0) -> tuple[Any, int]:
    """A subscriber that has been heard: events are published until one arrives. And the next event's number."""
    sub = connect(clients, zmq.SUB, publisher.endpoint)
    number = first
    while not sub.poll(20):
        publish(publisher, range(number, number + 1))
        number += 1
    return sub, number


def replay(clients: Clients, publisher: ZmqEventPublisher, first: int) -> list[tuple[int, bytes]]:
    """All batches of one replay."""
    client = connect(clients, zmq.DEALER, publisher.replay_endpoint)
    client.send_multipart([b"", first.to_bytes(8, "big")])
    found: list[tuple[int, bytes]] = []
    while True:
        empty, topic, sequence, payload = client.recv_multipart()
        assert (empty, topic) == (b"", b"kv@pod@model")
        if sequence == END:
            assert payload == b""
            client.close()
            clients.sockets.remove(client)
            return found
        found.append((int.from_bytes(sequence, "big"), payload))


def mirror_of_all(num_events: int) -> set[bytes | int]:
    hashes: set[bytes | int] = set()
    for number in range(num_events):
        change = event(number)
        if isinstance(change, BlockStored):
            hashes |= set(change.block_hashes)
        elif isinstance(change, BlockRemoved):
            hashes -= set(change.block_hashes)
    return hashes


def wait_for_replay_of(clients: Clients, publisher: ZmqEventPublisher, last: int) -> list[tuple[int, bytes]]:
    """A replay from 0, once the thread has come to batch `last`."""
    while True:
        found = replay(clients, publisher, 0)
        if found and found[-1][0] >= last:
            return found


def test_a_subscriber_gets_every_batch_in_order_numbered_from_zero(start: Any, clients: Clients) -> None:
    publisher = start(clock=lambda: 12.5)
    sub, number = subscribed(clients, publisher)
    publish(publisher, range(number, 300))
    mirror = EventMirror()

    topic, sequence, payload = sub.recv_multipart()
    first = int.from_bytes(sequence, "big")
    assert (topic, len(sequence)) == (b"kv@pod@model", 8)
    assert not mirror.receive(first, payload) or first == 0
    for expected in range(first + 1, 300):
        _, sequence, payload = sub.recv_multipart()
        assert int.from_bytes(sequence, "big") == expected
        mirror.receive(expected, payload)
    for sequence, payload in replay(clients, publisher, mirror.next_sequence):  # what came before we were heard
        mirror.receive(sequence, payload, replayed=True)

    assert not mirror.missing
    assert mirror.is_exact
    assert mirror.hashes == mirror_of_all(300)
    assert publisher.num_dropped == 0


def test_a_dropped_batch_keeps_its_number_and_the_gap_shows(start: Any, clients: Clients) -> None:
    publisher = ZmqEventPublisher(FREE, max_pending=3)
    publish(publisher, range(5))  # no thread yet: three fit
    publisher.start()
    try:
        wait_for_replay_of(clients, publisher, 2)
        publish(publisher, range(5, 6))
        found = wait_for_replay_of(clients, publisher, 5)
    finally:
        publisher.close()

    assert [sequence for sequence, _ in found] == [0, 1, 2, 5]
    assert publisher.num_dropped == 2


def test_events_lost_before_they_came_to_the_publisher_show_as_a_gap(start: Any, clients: Clients) -> None:
    publisher = start()
    publisher.publish([(0, event(0)), (1, event(1))])
    publisher.publish([])
    publisher.publish([(7, event(7)), (8, event(8))])
    publisher.publish([(9, event(9))])

    assert [sequence for sequence, _ in wait_for_replay_of(clients, publisher, 3)] == [0, 2, 3]


def test_a_replay_starts_where_asked_and_goes_as_far_back_as_is_kept(start: Any, clients: Clients) -> None:
    publisher = start(replay_batches=1_000)
    publish(publisher, range(1_500))
    kept = wait_for_replay_of(clients, publisher, 1_499)

    assert [sequence for sequence, _ in kept] == list(range(500, 1_500))
    assert replay(clients, publisher, 1_490) == kept[-10:]
    assert replay(clients, publisher, 1_500) == []
    assert replay(clients, publisher, 2**64 - 1) == []


def test_the_replay_buffer_stays_within_its_bytes() -> None:
    buffer = ReplayBuffer(100, 1_000)

    for sequence in range(0, 60, 2):
        buffer.add(sequence, bytes(90))

    assert len(buffer) == 11
    assert buffer.num_bytes == 990
    assert buffer.get(58) == bytes(90)
    assert buffer.get(36) is None
    buffer.add(60, bytes(2_000))
    assert (len(buffer), buffer.num_bytes) == (0, 0)


def test_a_client_that_asks_and_never_reads_holds_up_nobody(start: Any, clients: Clients) -> None:
    publisher = start()
    for number in range(2_000):
        publisher.publish([(number, event(number - number % 2, num_tokens=512))])
        if number % 500 == 0:
            wait_for_replay_of(clients, publisher, number)
    deaf = connect(clients, zmq.DEALER, publisher.replay_endpoint, RCVHWM=1, RCVBUF=4_096)
    for _ in range(100):
        deaf.send_multipart([b"", bytes(8)])

    assert len(wait_for_replay_of(clients, publisher, 1_999)) == 2_000 > MAX_QUEUED_A_CLIENT


def test_a_thousand_random_frames_change_nothing(start: Any, clients: Clients) -> None:
    publisher = start()
    publish(publisher, range(50))
    before = wait_for_replay_of(clients, publisher, 49)
    rng = random.Random(1)
    client = connect(clients, zmq.DEALER, publisher.replay_endpoint)
    for _ in range(1_000):
        frames = [rng.randbytes(rng.choice([0, 1, 7, 8, 9, 200, 5_000])) for _ in range(rng.randrange(1, 6))]
        if len(frames) == 2 and not frames[0] and len(frames[1]) == 8:
            frames.append(b"not a request")
        client.send_multipart(frames)
    host, port = publisher.replay_endpoint.removeprefix("tcp://").split(":")
    for endpoint_port in (int(port), int(publisher.endpoint.rsplit(":", 1)[1])):
        with socket.create_connection((host, endpoint_port)) as raw:
            raw.sendall(rng.randbytes(10_000))

    assert wait_for_replay_of(clients, publisher, 49) == before
    publish(publisher, range(50, 60))
    assert wait_for_replay_of(clients, publisher, 59)[:50] == before
    assert not client.poll(50)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.alone
def test_a_subscriber_that_never_reads_costs_bounded_memory_and_nothing_else(start: Any, clients: Clients) -> None:
    publisher = start(high_water_mark=100, replay_batches=100)
    _, number = subscribed(clients, publisher)

    def flood(num_batches: int) -> None:
        nonlocal number
        for _ in range(num_batches):
            publisher.publish([(number, event(number - number % 2, num_tokens=2_000))])
            number += 1
            if number % 200 == 0:
                wait_for_replay_of(clients, publisher, number - 1)

    flood(4_000)  # fills every queue on the way: 24 MB, some of it in the kernel
    before = resident_bytes()
    flood(8_000)  # 48 MB more, were it kept

    assert resident_bytes() - before < 16 << 20
    assert publisher.num_dropped == 0
    found, _ = subscribed(clients, publisher, number)
    # The last batch of the flood may still have been on its way when it subscribed.
    assert int.from_bytes(found.recv_multipart()[1], "big") >= number - 1


def test_close_sends_what_is_queued_and_ends_thread_and_sockets(start: Any, clients: Clients) -> None:
    publisher = start()
    sub, number = subscribed(clients, publisher)
    publish(publisher, range(number, number + 500))
    publisher.close()
    publisher.close()
    publisher.publish([(number + 500, event(0))])

    last = -1
    while last < number + 499:
        last = int.from_bytes(sub.recv_multipart()[1], "big")
    assert "foreword-events" not in {thread.name for thread in threading.enumerate()}
    for endpoint in (publisher.endpoint, publisher.replay_endpoint):
        host, port = endpoint.removeprefix("tcp://").split(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def test_an_address_that_is_taken_is_one_line_and_leaves_nothing_open(start: Any) -> None:
    taken = start()
    before = threading.active_count()

    with pytest.raises(ForewordError, match=f"can't listen on {taken.endpoint}: it is taken"):
        open_publisher(EventOptions(endpoint=taken.endpoint))
    with pytest.raises(ForewordError, match=f"can't listen on {taken.replay_endpoint}: it is taken"):
        open_publisher(EventOptions(endpoint="tcp://127.0.0.1:*", replay_endpoint=taken.replay_endpoint))
    with pytest.raises(ForewordError, match="can't listen on ipc:///nowhere/kv: "):
        open_publisher(EventOptions(endpoint="ipc:///nowhere/kv"))

    assert threading.active_count() == before


@pytest.mark.parametrize("endpoint", ["ipc", "tcp://[::1]:*"])
def test_other_transports_work_too(endpoint: str, clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> None:
    if endpoint == "ipc":
        endpoint = f"ipc://{tmp_path_factory.mktemp('kv')}/events"
    try:
        publisher = ZmqEventPublisher(EventOptions(endpoint=endpoint, topic="kv@pod@model"))
        publisher.start()
    except ForewordError as error:
        pytest.skip(f"this machine has no such address: {error}")
    try:
        publish(publisher, range(3))
        if "[" in endpoint:
            client = connect(clients, zmq.DEALER, publisher.replay_endpoint, IPV6=1)
            client.send_multipart([b"", bytes(8)])
            assert len(client.recv_multipart()) == 4
        else:
            assert len(wait_for_replay_of(clients, publisher, 2)) == 3
    finally:
        publisher.close()
