"""The trace formats that can be replayed, each as a record msgspec checks and a function to requests.

    mooncake          {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}    512 tokens an id
    kv-cache-tester   {"bs": 64, "r": [[t, in, out, api, think, stop, [start, len, ..]], {"t": .., "r": [..]}]}
    messages          {"messages": [{"role": .., "content": ..}, ..]}                 one request an assistant's turn
    tokens            {"token_ids": [..], "namespace": "..", "time": s}
    blocks            {"block_ids": [..], "block_tokens": 16, "num_tokens": n, "namespace": "..", "time": s,
                       "answer_tokens": n}

The last two are our own; all of their fields but the first are optional. `foreword serve --record` writes the last.
Fields that are not named here are ignored. A line is one conversation: requests of different conversations may run at
the same time (see `conversations`).
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

Encode = Callable[[str], list[int]]
Ids = NDArray[np.int32] | NDArray[np.int64]
"""Ids of 64 bits are hashes, to be numbered before they can be replayed."""
T = TypeVar("T")

MAX_ID = 2**30 - 1  # above it the replay has ids of its own
MAX_HASH = 2**63 - 1
MAX_IDS = 2**22
"""Most ids of one request: a run-length code of a few bytes must not ask for gigabytes."""

_Id = Annotated[int, Meta(ge=0, le=MAX_ID)]
_Hash = Annotated[int, Meta(ge=0, le=MAX_HASH)]
_Count = Annotated[int, Meta(ge=0, lt=2**40)]
_Seconds = Annotated[float, Meta(ge=0, lt=1e12)]
_BlockTokens = Annotated[int, Meta(ge=1, le=65536)]
_Name = Annotated[str, Meta(max_length=1024)]
_CompactRequest = tuple[_Seconds, _Count, msgspec.Raw, msgspec.Raw, msgspec.Raw, msgspec.Raw, list[_Id]]


class TracedRequest(Struct):
    """A request as its line tells it; ids are spelt out only when the request's turn comes."""

    line: int
    time_s: float
    make_ids: Callable[[], Ids]
    num_tokens: int | None = None  # None: as many as ids, or as many as the ids stand for
    namespace: bytes = b""
    num_usable: int | None = None  # leading tokens that may be found; None: as the kind of trace has it
    answer_tokens: int | None = None  # None: not recorded


Conversation = list[TracedRequest]


class TraceError(ValueError):
    """What is wrong with a line; the reader adds which line."""


class MooncakeRecord(msgspec.Struct):
    """A line of Mooncake's FAST '25 traces."""

    input_length: _Count
    hash_ids: list[_Id]
    timestamp: _Seconds = 0.0
    output_length: _Count | None = None

    def requests(self, number: int, encode: Encode) -> Conversation:
        """One request."""
        ids, answer = partial(_listed, self.hash_ids), self.output_length
        return [TracedRequest(number, self.timestamp / 1000, ids, self.input_length, answer_tokens=answer)]


class SubAgent(msgspec.Struct):
    """Requests of a sub-agent, timed from its start; its ids are those of the conversation."""

    t: _Seconds
    r: "list[_CompactRequest | SubAgent]"


class CompactRecord(msgspec.Struct):
    """A conversation of kv-cache-tester in compact form. Ids mean something within the conversation only."""

    bs: _BlockTokens
    r: list[_CompactRequest | SubAgent]

    def requests(self, number: int, encode: Encode) -> Conversation:
        """Its requests and those of its sub-agents, in order of time."""
        found: Conversation = []
        pending: list[tuple[float, list[_CompactRequest | SubAgent]]] = [(0.0, self.r)]
        while pending:
            start_s, records = pending.pop()
            for record in records:
                if isinstance(record, SubAgent):
                    pending.append((start_s + record.t, record.r))
                    continue
                time_s, num_tokens, runs = record[0], record[1], record[6]
                if len(runs) % 2 or sum(runs[1::2]) > MAX_IDS:
                    raise TraceError(f"r: expected pairs of start and length, {MAX_IDS:,} ids at most")
                namespace = number.to_bytes(8, "little")
                found.append(TracedRequest(number, start_s + time_s, partial(_expanded, runs), num_tokens, namespace))
        found.sort(key=lambda request: request.time_s)
        return found


class Message(msgspec.Struct):
    """One turn of a conversation; calls of tools are kept as they are spelt."""

    role: _Name
    content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")

    def text(self) -> str:
        """The turn in the plain rendering that replays use."""
        calls = bytes(self.tool_calls).decode("utf-8", "replace")  # nobody has looked into it yet
        return f"<|{self.role}|>\n{self.content or ''}{'' if calls == 'null' else calls}\n"


class MessagesRecord(msgspec.Struct):
    """A conversation as text. Before each turn of the assistant, everything up to it was one request."""

    messages: list[Message]

    def requests(self, number: int, encode: Encode) -> Conversation:
        """One request a turn of the assistant, one second apart."""
        pieces: list[Ids] = []
        found: Conversation = []
        opening = _listed(encode("<|assistant|>\n"))
        for message in self.messages:
            if message.role == "assistant" and pieces:
                prompt = [*pieces, opening]
                found.append(TracedRequest(number, len(found), partial(np.concatenate, prompt)))
            pieces.append(_listed(encode(message.text())))
        return found


class TokensRecord(msgspec.Struct):
    """A request of our own format, with tokens."""

    token_ids: list[_Id]
    namespace: _Name = ""
    time: _Seconds = 0.0

    def requests(self, number: int, encode: Encode) -> Conversation:
        """One request."""
        return [TracedRequest(number, self.time, partial(_listed, self.token_ids), None, self.namespace.encode())]


class BlocksRecord(msgspec.Struct):
    """A request of our own format, with ids of blocks of `block_tokens` tokens each.

    With `answer_tokens` the blocks go on into the answer, as far as its K and V were computed; only what lies before
    the prompt's last token may be found.
    """

    block_ids: list[_Hash]
    block_tokens: _BlockTokens = 16
    num_tokens: _Count | None = None
    namespace: _Name = ""
    time: _Seconds = 0.0
    answer_tokens: _Count | None = None

    def requests(self, number: int, encode: Encode) -> Conversation:
        """One request."""
        if self.answer_tokens is not None and not self.num_tokens:
            raise TraceError("num_tokens: expected at least 1 beside answer_tokens")
        num_usable = None if self.answer_tokens is None or self.num_tokens is None else self.num_tokens - 1
        return [
            TracedRequest(
                number,
                self.time,
                partial(np.array, self.block_ids, np.int64),
                self.num_tokens,
                self.namespace.encode(),
                num_usable,
                self.answer_tokens,
            )
        ]


Record = MooncakeRecord | CompactRecord | MessagesRecord | TokensRecord | BlocksRecord


class TraceFormat(Struct, frozen=True):
    """How lines are read: `key` is the field that tells the format from others."""

    name: str
    key: str
    record: type[Record]
    has_conversations: bool = False
    needs: str = ""  # what a line without a request lacks


FORMATS = (
    TraceFormat("mooncake", "hash_ids", MooncakeRecord),
    TraceFormat("kv-cache-tester", "r", CompactRecord, has_conversations=True),
    TraceFormat("messages", "messages", MessagesRecord, has_conversations=True, needs="a turn of the assistant"),
    TraceFormat("tokens", "token_ids", TokensRecord),
    TraceFormat("blocks", "block_ids", BlocksRecord),
)


def format_of(line: bytes) -> TraceFormat:
    """The format whose field a line has.

    Raises:
        TraceError: no object, or one with none of the fields.
    """
    fields = decoded(msgspec.json.Decoder(dict[str, msgspec.Raw]), line)
    for trace_format in FORMATS:
        if trace_format.key in fields:
            return trace_format
    raise TraceError(f"expected an object with one of the fields {', '.join(f.key for f in FORMATS)}")


def block_tokens(record: Record) -> int | None:
    """Tokens an id of the record stands for; None where it has tokens, or ids of single ones."""
    if isinstance(record, MooncakeRecord):
        return 512
    if isinstance(record, CompactRecord):
        return record.bs
    if isinstance(record, BlocksRecord) and record.block_tokens > 1:
        return record.block_tokens
    return None


def decoded(decoder: "msgspec.json.Decoder[T]", line: bytes) -> T:
    """One line as a record.

    Raises:
        TraceError: not JSON, nested too deep, or a field of the wrong kind; says which.
    """
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(str(error)) from None
    except RecursionError:
        raise TraceError("nested too deep") from None


def _listed(ids: list[int]) -> Ids:
    return np.array(ids, np.int32)


def _expanded(runs: list[int]) -> Ids:
    spans = [
        np.arange(start, start + length, dtype=np.int32) for start, length in zip(runs[::2], runs[1::2], strict=True)
    ]
    return np.concatenate(spans) if spans else np.empty(0, np.int32)
