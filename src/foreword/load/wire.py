"""As much of HTTP/1.1 as a client under test load needs: one request at a time on a connection, the body as it comes.

The standard library's client blocks, and a whole asynchronous one costs several times as much CPU a chunk as this,
which a server on the same cores would lose. Nothing that comes in is trusted: heads, lines and bodies are bounded.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from msgspec import Struct

from foreword.core.errors import InvalidRequestError
from foreword.load.inbox import Inbox

MAX_LINE = 64 << 10
MAX_HEADERS = 200
MAX_CHUNK = 16 << 20
_READ = 64 << 10


class WireError(Exception):
    """What came is not HTTP as we know it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, and the key to it."""

    host: str
    port: int
    prefix: str = ""  # of every path
    is_tls: bool = False
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, key: str | None = None) -> "Endpoint":
        """Out of an address; one that ends in `/v1`, as clients want it, is taken too.

        Raises:
            InvalidRequestError: not an http or https address, or a key that can't be in a header.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            parts, port = urlsplit(""), 0
        path = parts.path.rstrip("/").removesuffix("/v1")
        if parts.scheme not in ("http", "https") or not parts.hostname or not path.isascii() or " " in path:
            raise InvalidRequestError("url", "an address such as http://127.0.0.1:8000", url)
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InvalidRequestError("key", "printable ASCII", "something else")
        return cls(parts.hostname, port, path, parts.scheme == "https", key)

    def head(self, method: str, path: str, length: int) -> bytes:
        """The head of a request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {host}:{self.port}", "Accept: */*"]
        if length:
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        if self.key is not None:
            lines.append(f"Authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Connection(Struct):
    """One connection; `is_reusable` after an answer that was read to its end and left it open."""

    inbox: Inbox
    is_reusable: bool = False

    @classmethod
    async def open(cls, endpoint: Endpoint, clock: Callable[[], float] = time.perf_counter) -> "Connection":
        """Connect. `clock` tells when bytes come.

        Raises:
            OSError: nobody listens there.
        """
        context = ssl.create_default_context() if endpoint.is_tls else None
        loop = asyncio.get_running_loop()
        _, inbox = await loop.create_connection(lambda: Inbox(clock), endpoint.host, endpoint.port, ssl=context)
        return cls(inbox)

    @property
    def arrived_s(self) -> float:
        """When the last of what was read came."""
        return self.inbox.arrived_s

    def send(self, data: bytes) -> None:
        """Send, without waiting for it."""
        self.inbox.transport.write(data)

    def close(self, *, by_reset: bool = False) -> None:
        """End it; `by_reset` without a goodbye, as a process that dies does."""
        if by_reset:
            self.inbox.transport.abort()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.inbox.transport.close()

    async def answer_head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, names in small letters.

        Raises:
            WireError, OSError, asyncio.IncompleteReadError: no answer.
        """
        self.is_reusable = self.inbox.is_patient = False
        while True:
            head = await self.inbox.head(MAX_LINE)
            if head is None:
                status, headers = await self._head_by_lines()
            else:
                first, *lines = head[:-4].split(b"\r\n")
                status, headers = _status(first), {}
                for line in lines:
                    _note_header(line, headers)
            if status != 100:
                return status, headers

    async def _head_by_lines(self) -> tuple[int, dict[str, str]]:
        status, headers = _status(await self._line()), dict[str, str]()
        while line := await self._line():
            _note_header(line, headers)
        return status, headers

    def whole_body(self, headers: dict[str, str]) -> bytes | None:
        """The body, if its length was told and it has come; None where `body` has to be asked.

        Raises:
            WireError: the length is no number.
        """
        if "content-length" not in headers or headers.get("transfer-encoding", "").lower() == "chunked":
            return None
        data = self.inbox.come(_number(headers["content-length"].encode(), 10))
        self.is_reusable = data is not None and headers.get("connection", "").lower() != "close"
        return data

    async def body(self, headers: dict[str, str], *, is_patient: bool = False) -> AsyncIterator[bytes]:
        """The body's bytes as they come, to its end; for a patient reader many at once, as soon as it has ended.

        Raises:
            WireError, OSError, asyncio.IncompleteReadError: it ends before that.
        """
        if headers.get("transfer-encoding", "").lower() == "chunked":
            self.inbox.is_patient = is_patient
            async for chunk in self._chunks():
                yield chunk
        elif "content-length" in headers:
            left = _number(headers["content-length"].encode(), 10)
            while left:
                data = await self.inbox.some(min(left, _READ))
                if not data:
                    raise WireError("the body ended early")
                left -= len(data)
                yield data
        else:
            while data := await self.inbox.some(_READ):
                yield data
            return  # only its end told the body's: not reusable
        self.is_reusable = headers.get("connection", "").lower() != "close"

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := _number((await self._line()).partition(b";")[0], 16):
            if size > MAX_CHUNK:
                raise WireError("a chunk is too long")
            data = await self.inbox.exactly(size + 2)
            yield data[:-2]
        self.inbox.is_patient = False  # its end is all that is left, and may have come in part
        while await self._line():
            pass  # trailers

    async def _line(self) -> bytes:
        line = await self.inbox.line(MAX_LINE)
        if line is None:
            raise WireError("a line is too long")
        return line


def _status(line: bytes) -> int:
    words = line.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise WireError("no status line")
    return int(words[1])


def _note_header(line: bytes, headers: dict[str, str]) -> None:
    name, _, value = line.partition(b":")
    headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
    if len(headers) > MAX_HEADERS:
        raise WireError("too many headers")


def _number(text: bytes, base: int) -> int:
    try:
        value = int(text, base)
    except ValueError:
        value = -1
    if value < 0:
        raise WireError("no number where one should be")
    return value
