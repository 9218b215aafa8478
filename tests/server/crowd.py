"""Many clients at once on plain sockets, each of them exactly as far in its answer as a test wants it."""

import asyncio
import json
import socket
import statistics
from collections.abc import Mapping
from typing import Any

RESET = b"\x01\0\0\0\0\0\0\0"  # SO_LINGER of no seconds: closing sends RST


def request_bytes(path: str, body: Mapping[str, Any] | bytes, *, key: str | None = None) -> bytes:
    """A request for one answer on its connection."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
        *([] if key is None else [f"Authorization: Bearer {key}"]),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class Caller:
    """One request under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0

    @classmethod
    async def ask(cls, port: int, path: str, body: Mapping[str, Any] | bytes, *, key: str | None = None) -> "Caller":
        """Connect and send."""
        caller = cls(*await asyncio.open_connection("127.0.0.1", port))
        caller._writer.write(request_bytes(path, body, key=key))
        await caller._writer.drain()
        return caller

    async def head(self) -> dict[str, str]:
        """The status, and the answer's headers."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        pairs = (line.partition(": ") for line in lines[1:] if line)
        return {name.lower(): value for name, _, value in pairs}

    async def events(self, count: int) -> None:
        """Read this many events of a stream."""
        for _ in range(count):
            await self._reader.readuntil(b"\n\n")

    async def rest(self) -> bytes:
        """Everything up to the end."""
        try:
            return await self._reader.read()
        finally:
            self.leave(by_reset=False)

    def leave(self, *, by_reset: bool) -> None:
        """Go in the midst of it: in good order, or without a word."""
        if by_reset:
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._writer.transport.abort()
        else:
            self._writer.close()


def p95(values: list[float]) -> float:
    """What one in twenty is above."""
    return statistics.quantiles(values, n=20)[-1]
