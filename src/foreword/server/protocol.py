"""uvicorn's HTTP protocol with the deadlines it lacks: for a request's head, and for a client that reads nothing."""

import asyncio
import socket
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from foreword.server.connections import Connection, Connections, network_of
from foreword.server.direct_body import DirectBody
from foreword.server.early_refusal import EarlyRefusals
from foreword.server.errors import ApiError
from foreword.server.gate import CONNECTION_KEY
from foreword.server.limits import Limits
from foreword.server.sse import BODY_KEY
from foreword.server.turned_away import Door, whole_answer


class DeadlineProtocol(H11Protocol):
    """One connection. The body's deadline is the body reader's.

    The deadline of the head is absolute: a byte now and then does not move it. uvicorn's own keep-alive timer is put
    back by every byte, and knows nothing of a connection on which nothing complete has come yet.
    """

    def __init__(
        self,
        *args: Any,
        limits: Limits,
        connections: Connections,
        door: Door,
        early: EarlyRefusals,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._all = connections
        self._door = door
        self._early = early
        self._own: Connection | None = None
        self._num_unread = 0  # bytes still to come of a request that was refused
        self._is_begun = False  # the parser has been given something since it was last seen at rest
        self._refused_s = 0.0  # when the last refused request ended
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._body: DirectBody | None = None  # of the answer under way, or the last

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, or turn it away when there are too many."""
        transport = cast(asyncio.Transport, transport)
        self._own = self._all.open(network_of(transport.get_extra_info("peername")), transport.abort)
        if self._own is None:
            self._door.turn_away(transport, self._all.most)
            return
        super().connection_made(transport)
        # A token must not wait for the acknowledgement of the one before; asyncio sees to that only for sockets that
        # name their protocol, and one that was bound beforehand does not.
        self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        assert self._own is not None
        self._own.end()
        if self._body is not None:
            self._body.lose()
        self._stop_head_timer()
        self._stop_write_timer()
        self._stop_rest_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; the timer runs from the first of them to the end of the head."""
        if self._num_unread:
            dropped = min(self._num_unread, len(data))
            data = data[dropped:]
            self._num_unread -= dropped
            if not self._num_unread:
                self._refused()
            if not data:
                return
        if not self._is_busy():
            if self._is_refused(data):
                return
            self._expect_head()
        self._is_begun = True
        super().data_received(data)
        if self._is_busy():
            self._stop_head_timer()

    def handle_events(self) -> None:
        """What a request's bytes say; the gate then knows its connection, and its answer can be written directly."""
        before = self.cycle
        super().handle_events()
        cycle = self.cycle
        if cycle is None or cycle is before:
            return
        assert self._own is not None
        self._own.refresh()
        scope = cast(dict[str, Any], cycle.scope)
        scope[CONNECTION_KEY] = self._own
        if scope["http_version"] == "1.1":
            self._body = scope[BODY_KEY] = DirectBody(cycle, self.loop)

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP: say so, unless another answer has begun, and close.

        Not by h11, whose state is that of an answer to the request before, or to one whose body went wrong: that one's
        application is told that its client is gone.
        """
        cycle = self.cycle
        is_answered = cycle is not None and cycle.response_started and self.conn.our_state is not h11.IDLE
        if not is_answered:
            self.transport.write(whole_answer(ApiError(400, "what came is no request of HTTP/1.1", code="not_http")))
        if self._is_busy():
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()
        self._await_rest()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._stop_write_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """An answer is over, though its end may still lie here."""
        self._await_rest()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came since the timer was set; a refusal does not set it anew each time, so there may be time left."""
        due_s = self._refused_s + self.timeout_keep_alive
        if due_s > self.loop.time() and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_at(due_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _is_refused(self, data: bytes) -> bool:
        """Whether a request that can't be taken now was answered, before anything is made of it."""
        if self._is_begun and not self._is_parser_at_rest():
            return False
        self._is_begun = False
        refusal = None if self.flow.write_paused else self._early.refuse(data, self.server_state.default_headers)
        if refusal is None:
            return False
        assert self._own is not None
        self._own.refresh()
        self.transport.write(refusal.answer)
        self._await_rest()
        self._num_unread = refusal.num_bytes - len(data)
        if refusal.closes:
            self._stop_head_timer()
            self.transport.close()
        elif self._num_unread:
            self._unset_keepalive_if_required()
            self._expect_head()
        else:
            self._refused()
        return True

    def _unsupported_upgrade_warning(self) -> None:
        """Answered as if it had not been asked for, which HTTP allows."""

    def _is_parser_at_rest(self) -> bool:
        conn = self.conn
        return conn.our_state is h11.IDLE and conn.their_state is h11.IDLE and not conn.trailing_data[0]

    def _refused(self) -> None:
        """A refused request has come to its end; there may be another."""
        self._stop_head_timer()
        self._refused_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            due_s = self._refused_s + self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_at(due_s, self.timeout_keep_alive_handler)

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._is_busy():
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_rest(self) -> None:
        """Cut off who takes nothing of an answer's end: a transport that closes waits for good, and says nothing."""
        self._stop_rest_timer()
        left = self.transport.get_write_buffer_size()
        if left:
            self._rest_timer = self.loop.call_later(self._limits.write_timeout_s, self._rest_is_late, left)

    def _rest_is_late(self, before: int) -> None:
        if self._is_busy():
            self._rest_timer = None  # there is more behind it now, whose end will be awaited
        elif self.transport.get_write_buffer_size() < before:
            self._await_rest()
        else:
            self.transport.abort()

    def _stop_rest_timer(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
