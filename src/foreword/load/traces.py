"""Recorded traces as calls to a server: the same beginnings in common and lengths, at the recorded times or faster.

What a trace has decides what is sent. Token ids go as they are. Ids of blocks are spelt as made-up tokens, the same
ones for the same id, so that prompts share what they shared. Conversations go through chat as they were said.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.load.call import Call, Session, chat_call, completion_call
from foreword.load.drive import Pace
from foreword.load.workload import FIRST_ID, LAST_ID
from foreword.replay.formats import (
    CompactRecord,
    Message,
    MessagesRecord,
    Record,
    TracedRequest,
    TraceError,
    TraceFormat,
    block_tokens,
    decoded,
    format_of,
)
from foreword.replay.lines import bad_line, read_lines
from foreword.replay.trace import byte_tokens

MAX_REQUESTS = 1_000_000
"""Requests of one replay: they are put in order of time before the first is sent."""
MAX_PROMPT_TOKENS = 2**20
_ROLES = frozenset({"system", "user", "assistant"})


class TraceLoad(Struct, frozen=True, kw_only=True):
    """How a trace is sent.

    `speed` times as fast as recorded, or with None as fast as `at_once` requests, or conversations, at a time allow.
    `block_size` is how many tokens spell an id: fewer than the trace's make everything shorter in proportion.
    """

    model: str
    speed: float | None = 1.0
    at_once: int = 16
    answer_tokens: int = 32  # where the trace does not say
    block_size: int | None = None
    max_requests: int | None = None

    def __post_init__(self) -> None:
        if self.speed is not None and not 0 < self.speed <= 1e6:
            raise InvalidRequestError("speed", "more than 0, at most 1,000,000, or max", self.speed)
        for name in ("at_once", "answer_tokens", "block_size", "max_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequestError(name, "at least 1", value)


class TraceSessions:
    """A trace file as sessions. Reads the whole file at once, spells prompts as they are sent."""

    def __init__(self, path: Path, load: TraceLoad) -> None:
        """Read the file.

        Raises:
            ForewordError: it can't be read, or is no trace; says which line and why.
        """
        self.path = path
        self._load = load
        first = next(read_lines(path), None)
        if first is None:
            raise ForewordError(f"{path}: holds no request")
        try:
            self.format: TraceFormat = format_of(first[1])
        except TraceError as error:
            raise bad_line(path, first[0], str(error)) from None
        self._records = list(islice(self._read(), load.max_requests or MAX_REQUESTS + 1))
        if len(self._records) > MAX_REQUESTS:
            raise ForewordError(f"{path}: more than {MAX_REQUESTS:,} lines; send a part with --max-requests")

    def pace(self) -> Pace:
        """Open where each line has its own time, closed otherwise."""
        is_open = self._load.speed is not None and not self.format.has_conversations
        return Pace(streams=None if is_open else self._load.at_once)

    def sessions(self) -> Iterator[Session]:
        """Lines as sessions, in order of time where they have one of their own.

        Raises:
            ForewordError: a prompt is too long to be sent.
        """
        if self.format.has_conversations:
            made = (self._conversation(number, record) for number, record in self._records)
            return _first_calls((session for session in made if session.calls), self._load.max_requests)
        requests = [(r, record) for n, record in self._records for r in self._requests(n, record)]
        if self._load.speed is not None:
            requests.sort(key=lambda pair: pair[0].time_s)
        begun_s = requests[0][0].time_s
        return (
            Session((self._call(r, record),), (r.time_s - begun_s) / (self._load.speed or 1.0))
            for r, record in requests
        )

    def _read(self) -> Iterator[tuple[int, Record]]:
        decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(self.format.record)
        for number, line in read_lines(self.path):
            try:
                yield number, decoded(decoder, line)
            except TraceError as error:
                raise bad_line(self.path, number, str(error)) from None

    def _conversation(self, number: int, record: Record) -> Session:
        if isinstance(record, MessagesRecord):
            calls = []
            for index, message in enumerate(record.messages):
                if message.role == "assistant" and index:
                    said = [_as_chat(before) for before in record.messages[:index]]
                    calls.append(chat_call(self._load.model, said, self._load.answer_tokens))
            return Session(tuple(calls))
        requests = self._requests(number, record)
        speed = self._load.speed
        offsets = tuple((r.time_s - requests[0].time_s) / speed for r in requests) if speed and requests else ()
        return Session(tuple(self._call(r, record) for r in requests), 0.0, offsets)

    def _requests(self, number: int, record: Record) -> list[TracedRequest]:
        try:
            return record.requests(number, byte_tokens)
        except TraceError as error:
            raise bad_line(self.path, number, str(error)) from None

    def _call(self, request: TracedRequest, record: Record) -> Call:
        ids = self._prompt(request, block_tokens(record))
        answer = self._load.answer_tokens if request.answer_tokens is None else max(1, request.answer_tokens)
        salt = request.namespace.decode() if not isinstance(record, CompactRecord) else ""
        return completion_call(self._load.model, ids, answer, cache_salt=salt or None)

    def _prompt(self, request: TracedRequest, size: int | None) -> list[int]:
        ids = request.make_ids()
        if size is None:
            tokens = ids if ids.dtype == np.int32 else FIRST_ID + ids % (LAST_ID - FIRST_ID + 1)
            count = len(tokens) if request.num_tokens is None else request.num_tokens
        else:
            count = len(ids) * size if request.num_tokens is None else request.num_tokens
            self._check(request, count)
            spelt = self._load.block_size or size
            count = max(1, count * spelt // size)
            self._check(request, count)
            runs = [_made_up(request.namespace, found, spelt) for found in ids[: -(-count // spelt)].tolist()]
            tokens = np.concatenate(runs) if runs else np.empty(0, np.int64)
        self._check(request, count)
        missing = count - len(tokens)
        if missing > 0:  # the end of a prompt that no whole block covers is like no other
            tokens = np.concatenate([tokens, _made_up(b"own %d" % request.line, 0, missing)])
        return [int(token) for token in tokens[:count]]

    def _check(self, request: TracedRequest, count: int) -> None:
        if not 1 <= count <= MAX_PROMPT_TOKENS:
            raise bad_line(self.path, request.line, f"a prompt of {count:,} tokens can't be sent")


def _made_up(namespace: bytes, block: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    rng = np.random.default_rng([block, *namespace])
    return rng.integers(FIRST_ID, LAST_ID + 1, count)


def _as_chat(message: Message) -> dict[str, str]:
    """A turn that any template takes: calls of tools as they are spelt, what tools said as the user's."""
    calls = bytes(message.tool_calls).decode("utf-8", "replace")
    text = f"{message.content or ''}{'' if calls == 'null' else calls}"
    return {"role": message.role if message.role in _ROLES else "user", "content": text or " "}


def _first_calls(sessions: Iterable[Session], count: int | None) -> Iterator[Session]:
    """Sessions of `count` calls together."""
    for session in sessions:
        if count is None:
            yield session
            continue
        if not count:
            return
        calls = session.calls[:count]
        count -= len(calls)
        yield Session(calls, session.start_s, session.offsets_s[: len(calls)])
