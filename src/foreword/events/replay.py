"""The last batches, and their replay to whoever missed some.

A request is `[empty, first sequence]`; the answer is `[empty, topic, sequence, batch]` for each batch kept from there
on, closed by sequence -1 with an empty batch. Answers go out a few batches at a time, so that a client that reads
slowly holds up neither the stream nor the others, and costs no more memory than its share of the socket's queue.
"""

from collections import OrderedDict
from collections.abc import Callable

import zmq
from msgspec import Struct

SEQUENCE_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)

MAX_REQUESTS_A_TURN = 64
MAX_ANSWERS = 64
"""Answers under way; one more ends the oldest."""
MAX_BATCHES_A_TURN = 128
MAX_QUEUED_A_CLIENT = 256
PATIENCE_S = 10.0
"""An answer whose client takes nothing for so long is ended."""


class ReplayBuffer:
    """The last batches by number, at most `max_batches` and `max_bytes`."""

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._batches: dict[int, bytes] = {}
        self.num_bytes = 0
        self.first = 0
        self.end = 0

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, sequence: int, payload: bytes) -> None:
        """Keep a batch; numbers only grow, and may leave some out."""
        self._batches[sequence] = payload
        self.num_bytes += len(payload)
        self.end = sequence + 1
        while len(self._batches) > self._max_batches or self.num_bytes > self._max_bytes:
            self.num_bytes -= len(self._batches.pop(self.first, b""))
            self.first += 1

    def get(self, sequence: int) -> bytes | None:
        """A batch, or None when it is not kept."""
        return self._batches.get(sequence)


class _Answer(Struct):
    """Batches `[next, end)` are still to be sent."""

    next: int
    end: int
    moved_at: float  # when the client last took something


class ReplayServer:
    """Answers requests that come in at a ROUTER socket. Used by one thread."""

    def __init__(
        self, socket: "zmq.Socket[bytes]", buffer: ReplayBuffer, topic: bytes, clock: Callable[[], float]
    ) -> None:
        self._socket = socket
        self._buffer = buffer
        self._topic = topic
        self._clock = clock
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self.num_refused = 0

    @property
    def is_busy(self) -> bool:
        """True while an answer is under way."""
        return bool(self._answers)

    def serve(self) -> None:
        """Take some requests and send some batches; never waits."""
        self._take_requests()
        for client, answer in list(self._answers.items()):
            if self._advance(client, answer):
                del self._answers[client]

    def _take_requests(self) -> None:
        for _ in range(MAX_REQUESTS_A_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or frames[1] or len(frames[2]) != SEQUENCE_BYTES:
                self.num_refused += 1
                continue
            first = max(int.from_bytes(frames[2], "big"), self._buffer.first)
            self._answers.pop(frames[0], None)
            self._answers[frames[0]] = _Answer(first, self._buffer.end, self._clock())
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)

    def _advance(self, client: bytes, answer: _Answer) -> bool:
        """Send the next batches of an answer; True when it is over, one way or another."""
        answer.next = max(answer.next, self._buffer.first)
        for _ in range(MAX_BATCHES_A_TURN):
            over = answer.next >= answer.end
            payload = b"" if over else self._buffer.get(answer.next)
            sequence = END_OF_REPLAY if over else answer.next.to_bytes(SEQUENCE_BYTES, "big")
            if payload is not None:  # a number left out was dropped before it was sent: the gap stays
                try:
                    self._socket.send_multipart([client, b"", self._topic, sequence, payload], zmq.NOBLOCK)
                except zmq.Again:
                    return self._clock() - answer.moved_at > PATIENCE_S
                except zmq.ZMQError:  # the client has gone
                    return True
            answer.moved_at = self._clock()
            if over:
                return True
            answer.next += 1
        return False
