"""A trace file as a stream of requests in the order they are to be replayed. Reading it again gives the same stream."""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.replay.formats import (
    MAX_ID,
    Conversation,
    Encode,
    Ids,
    TracedRequest,
    TraceError,
    TraceFormat,
    block_tokens,
    decoded,
    format_of,
)
from foreword.replay.layout import Layout, layout_for
from foreword.replay.lines import Progress, bad_line, read_lines

MAX_SYMBOLS = 2**24


class ReplayRequest(Struct, frozen=True):
    """One prompt, spelt for the index."""

    namespace: bytes
    packed: bytes  # int32 a symbol
    num_tokens: int  # of the real prompt
    num_usable: int | None = None  # tokens of the prompt that may be found; None: as the kind of trace has it

    @property
    def num_symbols(self) -> int:
        """What the index takes for tokens."""
        return len(self.packed) // 4


def byte_tokens(text: str) -> list[int]:
    """UTF-8 bytes as tokens: no tokenizer needed, about four times as many tokens as one would make."""
    return list(text.encode("utf-8", "surrogatepass"))


class TraceOptions(Struct, frozen=True, kw_only=True):
    """How a trace is read. `at_once` conversations run at a time, where the trace has any."""

    block_size: int | None = None
    at_once: int = 16
    max_requests: int | None = None
    encode: Encode = byte_tokens

    def __post_init__(self) -> None:
        for name in ("block_size", "at_once", "max_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequestError(name, "at least 1", value)


class Trace:
    """A file whose first line has told its format."""

    def __init__(self, path: Path, options: TraceOptions) -> None:
        """Read the first line.

        Raises:
            ForewordError: the file cannot be read, or its first line is in no format known here.
            InvalidRequestError: the block size does not fit the trace's.
        """
        self.path = path
        self._options = options
        first = next(read_lines(path), None)
        if first is None:
            raise ForewordError(f"{path}: holds no request")
        number, line = first
        try:
            self.format: TraceFormat = format_of(line)
            self._decoder = msgspec.json.Decoder(self.format.record)
            self._block_tokens = block_tokens(decoded(self._decoder, line))
        except TraceError as error:
            raise bad_line(path, number, str(error)) from None
        self.layout: Layout = layout_for(self._block_tokens, options.block_size)
        self._numbers: dict[int, int] = {}  # of hashes, in order of their first coming

    def requests(self, progress: Progress | None = None) -> Iterator[ReplayRequest]:
        """The requests in order.

        Raises:
            ForewordError: a line that is not what the first one promised; says which and why.
        """
        conversations = self._conversations(progress)
        traced: Iterable[TracedRequest]
        if self.format.has_conversations:
            traced = interleaved(conversations, self._options.at_once)
        else:
            traced = (request for conversation in conversations for request in conversation)
        for request in itertools.islice(traced, self._options.max_requests):
            yield self._spelt(request)

    def _conversations(self, progress: Progress | None) -> Iterator[Conversation]:
        for number, line in read_lines(self.path, progress):
            try:
                record = decoded(self._decoder, line)
                if block_tokens(record) != self._block_tokens:
                    raise TraceError(f"expected blocks of {self._block_tokens} tokens, as in the first line")
                yield record.requests(number, self._options.encode)
            except TraceError as error:
                raise bad_line(self.path, number, str(error)) from None

    def _spelt(self, request: TracedRequest) -> ReplayRequest:
        ids = self._numbered(request.make_ids(), request.line)
        layout = self.layout
        if len(ids) * max(1, layout.symbols_an_id) > MAX_SYMBOLS:
            raise bad_line(self.path, request.line, f"a request of {len(ids):,} ids is too long to replay")
        num_tokens = request.num_tokens
        if num_tokens is None:
            num_tokens = len(ids) * (self._block_tokens or 1)
        symbols = np.repeat(ids, layout.symbols_an_id) if layout.has_ids else ids
        return ReplayRequest(request.namespace, symbols.tobytes(), num_tokens, request.num_usable)

    def _numbered(self, ids: Ids, line: int) -> Ids:
        """Hashes as numbers that an index takes."""
        if ids.dtype == np.int32:
            return ids
        numbers = self._numbers
        numbered = [numbers.setdefault(found, len(numbers)) for found in ids.tolist()]
        if len(numbers) > MAX_ID:
            raise bad_line(self.path, line, f"more than {MAX_ID:,} distinct blocks")
        return np.array(numbered, np.int32)


def interleaved(conversations: Iterable[Conversation], at_once: int) -> Iterator[TracedRequest]:
    """Requests of conversations of which `at_once` run at a time, in order of time.

    The first `at_once` start together; each further one starts when another has sent its last request. Holds no more
    than that many conversations.
    """
    source = iter(conversations)
    heap: list[tuple[float, int, float, int, Conversation]] = []  # due, slot, conversation's start, next index
    slot = 0

    def start(now_s: float) -> None:
        nonlocal slot
        for conversation in source:
            if conversation:
                slot += 1
                heapq.heappush(heap, (now_s + conversation[0].time_s, slot, now_s, 0, conversation))
                return

    for _ in range(at_once):
        start(0.0)
    while heap:
        due_s, number, start_s, index, conversation = heapq.heappop(heap)
        yield conversation[index]
        index += 1
        if index < len(conversation):
            heapq.heappush(heap, (start_s + conversation[index].time_s, number, start_s, index, conversation))
        else:
            start(due_s)
