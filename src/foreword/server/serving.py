"""From a service to a listening socket, and back in good order."""

import asyncio
import functools
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from foreword.core.errors import ForewordError
from foreword.server.app import make_app
from foreword.server.connections import Connections
from foreword.server.early_refusal import EarlyRefusals
from foreword.server.gate import LOOPBACK_HOSTS, Gate
from foreword.server.limits import Limits
from foreword.server.logs import log
from foreword.server.protocol import DeadlineProtocol
from foreword.server.service import Service
from foreword.server.turned_away import MAX_LINGERING, Door
from foreword.server.unhurried import UnhurriedLoop
from foreword.server.watchdog import EXIT_CODE

KEEP_ALIVE_S = 5
OTHER_DESCRIPTORS = 256
"""For what is no connection: files of the model, logs, events."""
SWITCH_INTERVAL_S = 0.0005
"""After which the engine's thread hands the interpreter to the loop. The loop lets it go at every call of the system, a
dozen of them a request, and with Python's 5 ms may wait so long each time to get it back."""
LAST_WORDS_S = 1.0
"""For clients to take the error that ends their answers, after a second signal."""


class Server(uvicorn.Server):
    """uvicorn's server, draining before it stops listening.

    The first SIGTERM or SIGINT: no new requests (503), what waits is ended, what runs may finish within the grace.
    The second: running answers end too, each with an error in its dialect. A third does not wait until it is read.
    """

    def __init__(self, service: Service, host: str, keys_file: Path | None = None) -> None:
        self._service = service
        self._keys_file = keys_file
        app = make_app(service, hosts=() if host in LOOPBACK_HOSTS else (f"[{host}]" if ":" in host else host,))
        self.door = Door(service.limits.retry_after_s, lambda: service.metrics.refused("connections"))
        self.connections = Connections(service.limits, service.metrics)
        protocol = functools.partial(
            DeadlineProtocol,
            limits=service.limits,
            connections=self.connections,
            door=self.door,
            early=EarlyRefusals(service, app),
        )
        super().__init__(_config(app, service.limits, protocol))
        self._drain_task: asyncio.Task[None] | None = None
        self._end_task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        self._loop = asyncio.get_running_loop()
        if isinstance(self._loop, UnhurriedLoop):
            self._service.admission.watch(self._loop.rest, self._loop.wake)
        if self._keys_file is not None and threading.current_thread() is threading.main_thread():
            self._loop.add_signal_handler(signal.SIGHUP, self.reload_keys)
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            await super().serve(sockets)
        finally:
            sys.setswitchinterval(before)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close everything; in a hurry too the application is told, which uvicorn then leaves to be cancelled."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()
        self.door.shut()
        for connection in list(self.server_state.connections):  # whose clients don't take what was left for them
            connection.transport.abort()
        await asyncio.sleep(0)  # for transports to close: without a loop they can't

    def reload_keys(self) -> None:
        """SIGHUP: let the file of keys hold as it stands now; one that can't be used changes nothing."""
        self._reloading = asyncio.get_running_loop().create_task(self._reload_keys())

    async def _reload_keys(self) -> None:
        service, file = self._service, self._keys_file
        assert file is not None
        try:
            keys = await service.off_loop(lambda: service.keys.reread(file))
            await service.use_keys(keys)
        except (OSError, ForewordError) as error:
            log("keys kept as they were", logging.WARNING, reason=str(error))
        else:
            log("keys reloaded", keys=keys.num_keys)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal. Not remembered, so the exit code is 0."""
        if self._loop is None or self._loop.is_closed() or self._end_task is not None:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self.drain if self._drain_task is None else self.end)

    def drain(self) -> None:
        """Begin to drain; stops when that is done."""
        if self._drain_task is None:
            log("draining", grace_s=self._service.limits.grace_s, open_requests=self._service.engine.num_open)
            self._drain_task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await self._service.drain()
        finally:
            self.should_exit = True

    def end(self) -> None:
        """End what runs, and stop as soon as that is told."""
        if self._end_task is None:
            log("ending", open_requests=self._service.engine.num_open)
            self._end_task = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        self._service.engine.end_streams()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                while self.server_state.tasks and not self.force_exit:
                    await asyncio.sleep(0.02)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self.should_exit = self.force_exit = True


def serve(service: Service, host: str, listening: socket.socket, keys_file: Path | None = None) -> None:
    """Serve on a bound socket until a signal ends it. SIGHUP reads `keys_file` again."""
    server = Server(service, host, keys_file)
    server.connections.most = _let_open(service.limits.max_connections)
    _on_signals(server.handle_exit)  # uvicorn asks for them too, but not in the beginning and the end
    try:
        with asyncio.Runner(loop_factory=UnhurriedLoop) as runner:
            runner.run(server.serve(sockets=[listening]))
    finally:
        if service.is_stuck:  # its thread can't be joined, and a process must not unwind a thread inside a kernel
            os._exit(EXIT_CODE)
        service.engine.stop()  # where the application's own end was not reached
        _on_signals(signal.SIG_IGN)  # the process is ending: the interpreter would let a late one kill it


def _let_open(num_connections: int) -> int:
    """Raise the soft limit of descriptors for so many; returns how many the hard one allows.

    A connection for which there is no descriptor waits in the backlog, unanswered, and nothing makes room for it.
    """
    wanted = num_connections + MAX_LINGERING + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most >= wanted:
        return num_connections
    fewer = min(num_connections, max(most - MAX_LINGERING - OTHER_DESCRIPTORS, most // 3))
    log("fewer connections than usual, for want of descriptors", logging.WARNING, most=fewer, descriptors=most)
    return fewer


def _on_signals(act: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, act)


def _config(app: Gate, limits: Limits, protocol: Callable[..., DeadlineProtocol]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]  # called as a class is
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=limits.max_head_bytes,
    )
