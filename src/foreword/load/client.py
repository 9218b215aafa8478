"""Sends calls and notes when the pieces of their answers came."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from foreword.core.errors import ForewordError
from foreword.load.call import Call, Record
from foreword.load.wire import Connection, Endpoint, WireError

MAX_EVENT = 4 << 20
MAX_ANSWER = 64 << 20
_BROKEN = (ConnectionError, asyncio.IncompleteReadError)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")

    def says_something(self) -> bool:
        return bool(self.content or self.reasoning_content) or bytes(self.tool_calls) not in (b"null", b"[]")


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def says_something(self) -> bool:
        return bool(self.text) or (self.delta is not None and self.delta.says_something())


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


class _Models(msgspec.Struct):
    class Model(msgspec.Struct):
        id: str

    data: list[Model]


class _Left(Exception):
    """We have left, as planned."""


class Client:
    """Calls to one server, from one event loop; connections are kept and used again."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float = 120.0,
        clock: Callable[[], float] = time.perf_counter,
        connect: Callable[[Endpoint, Callable[[], float]], Awaitable[Connection]] = Connection.open,
    ) -> None:
        self._connect = connect
        self.endpoint = endpoint
        self._clock = clock
        self._timeout_s = timeout_s
        self._idle: deque[Connection] = deque()
        self._decoder = msgspec.json.Decoder(_Chunk)

    def clock(self) -> float:
        """Seconds of the clock that records are in."""
        return self._clock()

    async def first_model(self) -> str:
        """The id of the first model the server lists.

        Raises:
            ForewordError: nobody answers, or without a model.
        """
        address = f"{self.endpoint.host}:{self.endpoint.port}"
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await Connection.open(self.endpoint)
                connection.send(self.endpoint.head("GET", "/v1/models", 0))
                status, headers = await connection.answer_head()
                data = b"".join([part async for part in connection.body(headers)])
                connection.close()
            if status != 200:
                raise ForewordError(f"{address}: /v1/models answered {status}")
            return msgspec.json.decode(data, type=_Models).data[0].id
        except (OSError, EOFError, WireError, msgspec.MsgspecError, IndexError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ForewordError(f"{address}: no list of models ({reason})") from None

    async def send(self, call: Call, due_s: float | None = None) -> Record:
        """Send a call and read its answer to the end. Never raises for what the server does: the record tells."""
        now = self.clock()
        record = Record(due_s=now if due_s is None else due_s, sent_s=now)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(call, record)
        except TimeoutError as error:
            record.outcome = "timeout" if error.errno is None else "connect"  # ours, or the system's
        except _Left:
            record.outcome = "left"
        except _BROKEN:
            record.outcome = "reset"
        except OSError:
            record.outcome = "connect"
        except (WireError, msgspec.MsgspecError, UnicodeDecodeError):
            record.outcome = "malformed"
        record.end_s = self.clock()
        return record

    def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, call: Call, record: Record) -> None:
        data = self.endpoint.head("POST", call.path, len(call.body)) + call.body
        connection, status, headers = await self._ask(data)
        try:
            if status != 200:
                await self._read_refusal(connection, headers, call, status, record)
            elif headers.get("content-type", "").startswith("text/event-stream"):
                await self._read_events(connection, headers, call, record)
            else:
                self._read_whole(await _read_all(connection, headers), record)
        except BaseException:
            connection.close(by_reset=True)
            raise
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()

    async def _ask(self, data: bytes) -> tuple[Connection, int, dict[str, str]]:
        while self._idle:
            connection = self._idle.pop()
            try:
                connection.send(data)
                return connection, *(await connection.answer_head())
            except _BROKEN:
                connection.close()  # the server had closed it meanwhile: nothing of this request was seen
            except BaseException:
                connection.close(by_reset=True)
                raise
        connection = await self._connect(self.endpoint, self._clock)
        try:
            connection.send(data)
            return connection, *(await connection.answer_head())
        except BaseException:
            connection.close(by_reset=True)
            raise

    async def _read_refusal(
        self, connection: Connection, headers: dict[str, str], call: Call, status: int, record: Record
    ) -> None:
        await _read_all(connection, headers)
        record.retry_after = headers.get("retry-after", "").isdigit()
        record.outcome = "refused" if call.is_garbage and 400 <= status < 500 else f"http_{status}"

    def _read_whole(self, data: bytes, record: Record) -> None:
        record.first_s = record.last_s = self.clock()
        self._note_usage(self._decoder.decode(data), record)

    async def _read_events(self, connection: Connection, headers: dict[str, str], call: Call, record: Record) -> None:
        buffer, num_pieces, is_done = b"", 0, False
        async for data in connection.body(headers, is_patient=call.leaves_after is None):
            now = connection.arrived_s
            *lines, buffer = (buffer + data).split(b"\n")
            if len(buffer) > MAX_EVENT:
                raise WireError("an event is too long")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                said = line[5:].strip()
                if said == b"[DONE]":
                    is_done = True
                elif self._note_chunk(self._decoder.decode(said), now, record):
                    num_pieces += 1
                    if call.leaves_after is not None and num_pieces > call.leaves_after:
                        raise _Left
        if not is_done and record.outcome == "ok":
            record.outcome = "cut"

    def _note_chunk(self, chunk: _Chunk, now: float, record: Record) -> bool:
        """True when the chunk has a piece of an answer; an end without any text before it counts as one."""
        if bytes(chunk.error) != b"null":
            record.outcome = "error_event"
            return False
        self._note_usage(chunk, record)
        has_piece = any(choice.says_something() for choice in chunk.choices)
        is_end = any(choice.finish_reason is not None for choice in chunk.choices)
        if not has_piece and not (is_end and record.first_s is None):
            if is_end:
                record.last_s = now  # the last tokens may have no text
            return False
        if record.first_s is None:
            record.first_s = now
        else:
            record.gaps_s.append(now - record.last_s)
        record.last_s = now
        return True

    def _note_usage(self, chunk: _Chunk, record: Record) -> None:
        usage = chunk.usage
        if usage is not None:
            record.prompt_tokens, record.completion_tokens = usage.prompt_tokens, usage.completion_tokens
            details = usage.prompt_tokens_details
            record.cached_tokens = 0 if details is None else details.cached_tokens or 0


async def _read_all(connection: Connection, headers: dict[str, str]) -> bytes:
    whole = connection.whole_body(headers)
    if whole is not None:
        return whole
    parts, size = [], 0
    async for part in connection.body(headers):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise WireError("an answer is too long")
    return b"".join(parts)
