"""A trace of what was asked without a word of it: chained hashes of blocks, lengths and times, for `foreword replay`.

    h_-1 = H(key, namespace)        h_i = H(key, h_{i-1}, token ids of block i)        H: BLAKE2b, keyed

The key is random for each run and never written, so a hash can't be compared with that of guessed text: what the file
tells is which prompts begin alike, how far, how long they are and when they came. Nothing else of the traffic is in it,
not even a tenant's name: namespaces are part of the chain.

Hashing and writing are done in a thread of its own. Nobody waits for it: when it is too far behind, or the disk is
full, requests are left out; that is logged once, and at the end how many.

The file holds whole lines: what a full disk took of one is taken back, and what a killed server has left of one is cut
off when the next opens the file.
"""

import fcntl
import hashlib
import logging
import os
import queue
import secrets
import stat
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.llm.outputs import RequestOutput
from foreword.server.logs import log

MAX_BLOCK_TOKENS = 65536
MAX_PENDING_TOKENS = 4 << 20
"""Tokens that may wait to be hashed: about 16 MiB."""
_ID_MASK = 2**63 - 1
_KEY_BYTES = 32
_LINE_BEGINS = b'{"time":'
_MANY_LINES_BYTES, _MAX_LINE_BYTES = 64 << 10, 64 << 20
_LAST_WRITES_S = 10.0
"""At the end, for what waits to be written."""


class _Entry(Struct, frozen=True):
    time_s: float
    namespace: bytes
    stored: "array[int]"  # tokens of which K and V were computed or found: the prompt, and the answer but its last
    num_tokens: int
    answer_tokens: int
    cached_tokens: int


class TraceRecorder:
    """Appends a line for each request that the engine was asked. Construction opens the file and starts nothing."""

    def __init__(self, path: Path, block_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the file, readable by its owner alone.

        Raises:
            InvalidRequestError: no size for a block.
            ForewordError: the file can't be written.
        """
        if not 1 <= block_tokens <= MAX_BLOCK_TOKENS:
            raise InvalidRequestError("record_block", f"1 to {MAX_BLOCK_TOKENS:,}", block_tokens)
        try:
            self._descriptor = _open(path)
        except OSError as error:
            raise ForewordError(f"--record {path}: {(error.strerror or 'cannot be written').lower()}") from None
        self.path = path
        self._block_tokens = block_tokens
        self._clock = clock
        self._began = clock()
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending_tokens = 0
        self._failed = False
        self.num_left_out = 0
        self._thread = threading.Thread(target=self._write_all, name="foreword-record", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what waits, and close the file."""
        self._entries.put(None)
        self._thread.join(_LAST_WRITES_S)
        if self._thread.is_alive():  # a pipe that nobody reads; the thread does not outlive the process
            self._fail("nobody takes it")
        else:
            with suppress(OSError):  # what a late failure has lost, no program can know
                os.close(self._descriptor)
        if self.num_left_out:
            left_out = self.num_left_out
            log("requests are missing in the recorded trace", logging.WARNING, file=str(self.path), requests=left_out)

    def note(self, namespace: bytes, started: float, outputs: Sequence[RequestOutput]) -> None:
        """Take in requests that have ended; of several answers the first counts. Never waits."""
        for output in outputs:
            usage = output.usage
            num_stored = usage.cached_tokens + usage.computed_tokens
            if not num_stored:
                continue  # ended before it was started
            answer = output.outputs[0].token_ids if output.outputs else []
            stored = array("i", [*output.prompt_token_ids[:num_stored], *answer[:-1]])
            entry = _Entry(
                max(0.0, started - self._began),
                namespace,
                stored,
                len(output.prompt_token_ids),
                len(answer),
                usage.cached_tokens,
            )
            if self._takes(len(stored)):
                self._entries.put(entry)

    def _takes(self, num_tokens: int) -> bool:
        with self._lock:
            has_room = not self._failed and self._pending_tokens + num_tokens <= MAX_PENDING_TOKENS
            if has_room:
                self._pending_tokens += num_tokens
            else:
                self.num_left_out += 1
                is_first = self.num_left_out == 1 and not self._failed
        if not has_room and is_first:
            log("requests are left out of the recorded trace", logging.WARNING, file=str(self.path))
        return has_room

    def _write_all(self) -> None:
        while (entry := self._entries.get()) is not None:
            is_written = not self._failed and self._is_written(self._line(entry))
            with self._lock:
                self._pending_tokens -= len(entry.stored)
                self.num_left_out += not is_written

    def _is_written(self, line: bytes) -> bool:
        """Whether a whole line was taken; if not, it is the last that was tried, and nothing of it stays."""
        num_taken = 0
        try:
            while num_taken < len(line):
                num_taken += os.write(self._descriptor, line[num_taken:])
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - num_taken)
            self._fail(error.strerror)
        return not self._failed

    def _fail(self, reason: str | None) -> None:
        is_first, self._failed = not self._failed, True
        if is_first:
            log("the trace is no longer recorded", logging.ERROR, file=str(self.path), reason=reason)

    def _line(self, entry: _Entry) -> bytes:
        ids, size = [], self._block_tokens
        chained = self._hash(b"namespace", entry.namespace)
        for start in range(0, len(entry.stored) - size + 1, size):
            chained = self._hash(chained, entry.stored[start : start + size].tobytes())
            ids.append(int.from_bytes(chained[:8], "little") & _ID_MASK)
        fields = {
            "time": round(entry.time_s, 6),
            "block_ids": ids,
            "block_tokens": size,
            "num_tokens": entry.num_tokens,
            "answer_tokens": entry.answer_tokens,
            "cached_tokens": entry.cached_tokens,
        }
        return msgspec.json.encode(fields) + b"\n"

    def _hash(self, before: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(before + data, key=self._key, digest_size=16).digest()


def _open(path: Path) -> int:
    """The file's descriptor, for whole lines to be appended; it is nobody else's meanwhile.

    Raises:
        OSError: it can't be written.
        ForewordError: another server records there, or it ends in the middle of what is no line of ours.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
            _cut_off_torn_line(descriptor, path)
    except BlockingIOError:
        os.close(descriptor)
        raise ForewordError(f"--record {path}: another server records there") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _cut_off_torn_line(descriptor: int, path: Path) -> None:
    """Cut off what follows the last whole line: the beginning of one, which a killed server has left."""
    torn, size = b"", os.fstat(descriptor).st_size
    with path.open("rb") as file:
        for num_bytes in (_MANY_LINES_BYTES, _MAX_LINE_BYTES):
            file.seek(max(0, size - num_bytes))
            _, newline, torn = file.read(num_bytes).rpartition(b"\n")
            if newline:
                break
    if not torn:
        return
    if not torn.startswith(_LINE_BEGINS[: len(torn)]):
        raise ForewordError(f"--record {path}: its last line is no line of a trace")
    os.ftruncate(descriptor, size - len(torn))
