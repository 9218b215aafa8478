"""A server on loopback, on a tiny random model, in a thread of its own."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, ClassVar, TypeVar

import pytest

from foreword.llm.loading import EngineOptions, load
from foreword.server.cache_policy.emulation import Emulation
from foreword.server.limits import Limits
from foreword.server.listening import bind
from foreword.server.service import Service
from foreword.server.serving import Server
from foreword.server.tenants import KeyRing, new_key
from foreword.server.unhurried import UnhurriedLoop
from tests.cli.conftest import tiny as tiny
from tests.cli.conftest import tiny_raw as tiny_raw
from tests.factories import tiny_config

ResultT = TypeVar("ResultT")
MODEL = "tiny"
TOKEN_BYTES = tiny_config().kv_bytes_per_token(EngineOptions().kv_dtype)  # of the tiny model


async def num_tasks() -> int:
    """Tasks of this loop, the asking one with them."""
    return len(asyncio.all_tasks())


class LiveServer:
    """A service that listens. `run` plays a coroutine in the server's own loop."""

    running: ClassVar[set["LiveServer"]] = set()

    def __init__(
        self,
        path: str,
        *,
        keys: KeyRing | None = None,
        limits: Limits | None = None,
        emulation: Emulation | None = None,
        names: Sequence[str] = (MODEL,),
        **options: Any,
    ) -> None:
        chosen = {"threads": 1, "kv_memory_bytes": 8192 * TOKEN_BYTES, "debug": True, **options}
        self.service = Service(
            load(path, EngineOptions(**chosen)), names=names, keys=keys, limits=limits, emulation=emulation
        )
        self._socket = bind("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = Server(self.service, "127.0.0.1")
        self.loop = UnhurriedLoop()
        self.unhandled: list[dict[str, Any]] = []  # what callbacks and tasks raised where nobody caught it
        self.loop.set_exception_handler(lambda _, context: self.unhandled.append(context))
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self.server.serve(sockets=[self._socket]))

    def start(self) -> None:
        self._thread.start()
        self.running.add(self)
        while not self.server.started:
            assert self._thread.is_alive()
            threading.Event().wait(0.01)
        self._num_tasks = self.run(num_tasks())

    def limit_send_buffers(self) -> None:
        """Let little lie between the server and a client that doesn't read. For connections yet to come."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def stop(self) -> None:
        if self._thread.is_alive():
            with suppress(RuntimeError):  # it has just ended by itself
                self.loop.call_soon_threadsafe(setattr, self.server, "should_exit", True)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.running.discard(self)
        assert not self.unhandled

    def check_idle(self) -> None:
        """Nothing is left of any request, and all bookkeeping adds up (R-20)."""

        async def idle() -> None:
            async with asyncio.timeout(10):
                service = self.service
                while service.engine.num_open or service.admission.num_requests or await num_tasks() > self._num_tasks:
                    await asyncio.sleep(0.01)

        self.run(idle())
        self.run(self.service.engine.run(lambda engine: engine.check_invariants()))
        stats = self.run(self.service.engine.run(lambda engine: engine.stats()))
        assert stats.held_blocks == stats.num_running == stats.num_waiting == 0
        assert self.service.admission.num_tokens == 0
        assert self.service.bodies.buffered_bytes == 0


def pytest_sessionfinish() -> None:
    """End servers that a failed test has left behind: the process would wait for their threads."""
    for server in [*LiveServer.running]:
        with suppress(Exception):
            server.stop()


StartServer = Callable[..., LiveServer]


@pytest.fixture
def start_server(tiny: str) -> Iterator[StartServer]:
    """Starts servers of the test's own."""
    started: list[LiveServer] = []

    def start(path: str = tiny, **options: Any) -> LiveServer:
        server = LiveServer(path, **options)
        started.append(server)
        server.start()
        return server

    with ExitStack() as stack:
        yield start
        for server in started:
            stack.callback(server.stop)  # all of them, even where one fails


@pytest.fixture(scope="session")
def _shared_server(tiny: str) -> Iterator[LiveServer]:
    server = LiveServer(tiny)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(_shared_server: LiveServer) -> Iterator[LiveServer]:
    """The shared server without keys, idle before and after."""
    yield _shared_server
    _shared_server.check_idle()


class Keyed:
    """A server with keys of two users, one of them with two keys, and of an operator."""

    def __init__(self, path: str, folder: Any, limits: Limits | None = None, **options: Any) -> None:
        self.keys, lines = {}, []
        for label, name, role in (
            ("alice", "alice", "user"),
            ("alice2", "alice", "user"),
            ("bob", "bob", "user"),
            ("ops", "ops", "operator"),
        ):
            key, line = new_key(name, role)  # type: ignore[arg-type]  # both roles are
            self.keys[label] = key
            lines.append(line)
        file = folder / "keys"
        file.write_text("# who may ask\n\n" + "\n".join(lines) + "\n")
        self.live = LiveServer(path, keys=KeyRing.from_file(file), limits=limits, **options)


@pytest.fixture(scope="session")
def _shared_keyed(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    keyed = Keyed(tiny, tmp_path_factory.mktemp("keys"))
    keyed.live.start()
    yield keyed
    keyed.live.stop()


@pytest.fixture
def keyed(_shared_keyed: Keyed) -> Iterator[Keyed]:
    """The shared server with keys, idle before and after."""
    yield _shared_keyed
    _shared_keyed.live.check_idle()
