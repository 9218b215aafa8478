"""KV events over ZeroMQ, as vLLM publishes them. Needs pyzmq: the extra `events`.

    engine thread                      publisher thread
    publish ── bounded queue ────────▶ encode ──▶ PUB    [topic, sequence, batch]
      a number each, dropped or not      │
                                         └──────▶ replay buffer ──▶ ROUTER

Sequence numbers are 8 bytes, big-endian, from 0. Whatever is lost on the way has had a number, so subscribers see a
gap. The engine's thread never waits: it appends to a queue, and drops when that is full.
"""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq

from foreword.core.errors import ForewordError
from foreword.events.encoder import EventEncoder
from foreword.events.options import EventOptions
from foreword.events.replay import MAX_QUEUED_A_CLIENT, SEQUENCE_BYTES, ReplayBuffer, ReplayServer
from foreword.kv_cache.events import CacheEvent

logger = logging.getLogger("foreword.events")

REPLAY_BATCHES = 10_000
REPLAY_BYTES = 64 << 20
MAX_PENDING = 2_000
"""Batches that may wait for the publisher's thread."""
HIGH_WATER_MARK = 10_000
"""Batches a subscriber may be behind before it misses some."""
MAX_INCOMING_BYTES = 1_024
"""Longest message a client may send; one that sends more is cut off."""
BUSY_POLL_MS = 20
LINGER_MS = 500
CLOSE_TIMEOUT_S = 5.0


class ZmqEventPublisher:
    """Publishes batches of KV events, and the last of them again on request.

    Construction opens nothing; `start` binds the sockets and starts the thread. `publish` belongs to one thread at a
    time.
    """

    def __init__(
        self,
        options: EventOptions,
        *,
        replay_batches: int = REPLAY_BATCHES,
        replay_bytes: int = REPLAY_BYTES,
        max_pending: int = MAX_PENDING,
        high_water_mark: int = HIGH_WATER_MARK,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._endpoints = options.bind_endpoints()
        self._topic = options.topic.encode()
        self._encoder = EventEncoder(options.form, int_hashes=options.int_hashes, open_namespace=options.open_namespace)
        self._buffer = ReplayBuffer(replay_batches, replay_bytes)
        self._max_pending = max_pending
        self._high_water_mark = high_water_mark
        self._clock = clock
        self._pending: deque[tuple[int, float, list[CacheEvent]]] = deque()
        self._next_sequence = 0
        self._next_number = 0
        self._is_closing = False
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.num_dropped = 0

    @property
    def endpoint(self) -> str:
        """Where subscribers connect; with its real port once started."""
        return self._endpoints[0]

    @property
    def replay_endpoint(self) -> str:
        """Where replays are asked for; with its real port once started."""
        return self._endpoints[1]

    def start(self) -> None:
        """Bind both sockets and start publishing.

        Raises:
            ForewordError: an address can't be had; nothing is left open.
        """
        context = zmq.Context()
        try:
            stream = self._bind(context, zmq.PUB, self.endpoint, self._high_water_mark)
            replay = self._bind(context, zmq.ROUTER, self.replay_endpoint, MAX_QUEUED_A_CLIENT)
        except BaseException:
            context.destroy(linger=0)
            raise
        self._endpoints = (_bound(stream), _bound(replay))
        woken, self._wake = socket.socketpair()
        for end in (woken, self._wake):
            end.setblocking(False)
        self._thread = threading.Thread(
            target=self._run, args=(context, stream, replay, woken), name="foreword-events", daemon=True
        )
        self._thread.start()

    def publish(self, events: Sequence[tuple[int, CacheEvent]]) -> None:
        """Queue one batch of numbered events; never waits, never fails.

        Numbers that are left out mean that events were lost before they came here: a sequence number is left out for
        them too.
        """
        if not events or self._is_closing:
            return
        self._next_sequence += events[0][0] != self._next_number
        self._next_number = events[-1][0] + 1
        sequence = self._next_sequence
        self._next_sequence += 1
        if len(self._pending) >= self._max_pending:
            self.num_dropped += 1
            return
        self._pending.append((sequence, self._clock(), [event for _, event in events]))
        self._wake_up()

    def close(self) -> None:
        """Send what is queued, then close sockets and thread. A second call does nothing."""
        self._is_closing = True
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._wake_up()
        thread.join(CLOSE_TIMEOUT_S)
        if thread.is_alive():
            logger.error("the thread that publishes KV events did not end within %g s", CLOSE_TIMEOUT_S)
        elif self._wake is not None:
            self._wake.close()

    def _wake_up(self) -> None:
        if self._wake is not None:
            with suppress(OSError):  # full: it is awake already
                self._wake.send(b"\0")

    @staticmethod
    def _bind(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, endpoint: str, queued: int) -> "zmq.Socket[bytes]":
        sock = context.socket(kind)
        sock.set(zmq.SNDHWM, queued)
        sock.set(zmq.RCVHWM, MAX_QUEUED_A_CLIENT)
        sock.set(zmq.MAXMSGSIZE, MAX_INCOMING_BYTES)
        sock.set(zmq.LINGER, LINGER_MS if kind == zmq.PUB else 0)
        if kind == zmq.ROUTER:
            sock.set(zmq.ROUTER_MANDATORY, 1)  # say so when a client's queue is full, instead of dropping
        if "[" in endpoint:
            sock.set(zmq.IPV6, 1)
        try:
            sock.bind(endpoint)
        except zmq.ZMQError as error:
            reason = "it is taken" if error.errno == zmq.EADDRINUSE else error.strerror or str(error)
            raise ForewordError(f"kv_events: can't listen on {endpoint}: {reason}") from None
        return sock

    # -- in the publisher's thread ---------------------------------------------------------------------------------

    def _run(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        stream: "zmq.Socket[bytes]",
        replay: "zmq.Socket[bytes]",
        woken: socket.socket,
    ) -> None:
        server = ReplayServer(replay, self._buffer, self._topic, time.monotonic)
        poller = zmq.Poller()
        poller.register(replay, zmq.POLLIN)
        poller.register(woken.fileno(), zmq.POLLIN)
        try:
            while not self._is_closing or self._pending:
                poller.poll(BUSY_POLL_MS if server.is_busy else None)
                with suppress(BlockingIOError):
                    while woken.recv(4096):
                        pass
                self._send_pending(stream)
                server.serve()
        except Exception:
            logger.exception("KV events are no longer published")
            self._is_closing = True
        finally:
            stream.close()
            replay.close()
            woken.close()
            context.term()

    def _send_pending(self, stream: "zmq.Socket[bytes]") -> None:
        while self._pending:
            sequence, timestamp, events = self._pending.popleft()
            payload = self._encoder.encode(timestamp, events)
            self._buffer.add(sequence, payload)
            stream.send_multipart([self._topic, sequence.to_bytes(SEQUENCE_BYTES, "big"), payload])


def _bound(sock: "zmq.Socket[bytes]") -> str:
    return sock.get_string(zmq.LAST_ENDPOINT)
