"""Which blocks an engine has stored, followed from its events alone.

    live stream    0 1 2 . 4 5           3 was lost: `missing` says so, 4 and 5 wait
    replay from 3        3 4 5 end       3 is applied, then 4 and 5; what comes twice is left alone

What no replay can bring back is given up with `skip_missing`: the mirror is then no longer exact, until the engine
clears everything.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from foreword.core.errors import InvalidRequestError
from foreword.events.encoder import WireHash

MAX_WAITING = 10_000
"""Batches kept behind a gap; beyond, the gap counts as one that can't be filled."""


class EventMirror:
    """The set of block hashes that one publisher's events add up to; reads vLLM's maps and its older arrays."""

    def __init__(self) -> None:
        self.hashes: set[WireHash] = set()
        self.is_exact = True
        self._next = 0
        self._last_live = -1
        self._waiting: dict[int, list[_Change]] = {}

    @property
    def next_sequence(self) -> int:
        """The batch that would be applied next: where a replay should start."""
        return self._next

    @property
    def missing(self) -> range:
        """Batches known to be missing before the earliest that waits; empty when nothing waits."""
        return range(self._next, min(self._waiting, default=self._next))

    def receive(self, sequence: int, payload: bytes, *, replayed: bool = False) -> bool:
        """Take one batch, live or from a replay.

        A live stream that starts again from a lower number is a publisher that was restarted: the mirror starts
        again too, empty, with what came before the batch missing.

        Returns:
            True when nothing is missing now.

        Raises:
            InvalidRequestError: not a batch of KV events; nothing was changed.
        """
        changes = _parse(payload)
        if not 0 <= sequence < 1 << 63:
            raise InvalidRequestError("sequence", "a number from 0 below 2**63", sequence)
        if not replayed:
            if sequence <= self._last_live:
                self._start_again()
            self._last_live = sequence
        if sequence >= self._next:
            self._waiting[sequence] = changes
            self._apply_waiting()
        if len(self._waiting) > MAX_WAITING:
            self.skip_missing()
        return not self._waiting

    def skip_missing(self) -> None:
        """Go on without the missing batches: a replay has ended and did not have them."""
        while self._waiting:
            self.is_exact = False
            self._next = min(self._waiting)
            self._apply_waiting()

    def _start_again(self) -> None:
        self.hashes.clear()
        self._waiting.clear()
        self.is_exact = True
        self._next = 0

    def _apply_waiting(self) -> None:
        while self._next in self._waiting:
            for change in self._waiting.pop(self._next):
                self._apply(change)
            self._next += 1

    def _apply(self, change: "_Change") -> None:
        kind, hashes = change
        if kind == "BlockStored":
            self.hashes.update(hashes)
        elif kind == "BlockRemoved":
            self.hashes.difference_update(hashes)
        else:
            self.hashes.clear()
            self.is_exact = True


_Change = tuple[str, list[WireHash]]


def _parse(payload: bytes) -> list[_Change]:
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidRequestError("KV events", "a batch in msgpack", payload) from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise InvalidRequestError("KV events", "[ts, [events], rank]", batch)
    changes = [_change(event) for event in batch[1]]
    return [change for change in changes if change is not None]


def _change(event: Any) -> _Change | None:
    """What an event does to the set; None for a kind that is not known, which other engines may add."""
    if isinstance(event, Mapping):
        kind, hashes = event.get("type"), event.get("block_hashes")
    elif isinstance(event, list) and event:
        kind, hashes = event[0], event[1] if len(event) > 1 else None
    else:
        raise InvalidRequestError("KV event", "a map or an array with its kind", event)
    if kind == "AllBlocksCleared":
        return kind, []
    if kind not in ("BlockStored", "BlockRemoved"):
        return None
    if not isinstance(hashes, list) or not all(type(h) in (bytes, int) for h in hashes):
        raise InvalidRequestError("block_hashes", "a list of bytes or integers", hashes)
    return kind, hashes
