"""Anthropic's cache breakpoints, checked by its rules; a rule broken is a 400, as it would be at Anthropic."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foreword.server.errors import ApiError

MAX_BREAKPOINTS = 4
DEFAULT_TTL = "5m"
SYSTEM = -1
"""Number of the message that a slot of the system prompt belongs to."""
TOOLS = -2
"""And of one on a tool."""


class CacheControl(msgspec.Struct, forbid_unknown_fields=True):
    """A breakpoint."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def lifetime(self) -> str:
        """Its time to live, the default filled in."""
        return self.ttl or DEFAULT_TTL


class Slot(Struct, frozen=True):
    """A place in the prompt that may carry a breakpoint."""

    where: str
    control: CacheControl | None
    is_eligible: bool = True  # empty text can't be cached
    message: int = SYSTEM
    block: int = 0  # in the message, or in the system prompt
    kind: str = "text"

    @property
    def ttl(self) -> str | None:
        """The lifetime of the breakpoint here; None without one."""
        return None if self.control is None else self.control.lifetime


def resolve_breakpoints(slots: Sequence[Slot], automatic: CacheControl | None) -> list[Slot]:
    """The same slots, with the automatic breakpoint of the top level on the last place that can have one; all checked.

    Raises:
        ApiError: 400: more than four; a 1h one after a 5m one; one on empty text; an automatic one that contradicts.
    """
    for slot in slots:
        if slot.control is not None and not slot.is_eligible:
            raise ApiError(400, f"{slot.where}: cache_control cannot be set for empty text blocks", slot.where)
    resolved = list(slots) if automatic is None else _with_automatic(slots, automatic)
    marked = [slot for slot in resolved if slot.control is not None]
    if len(marked) > MAX_BREAKPOINTS:
        found = f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {len(marked)}."
        raise ApiError(400, found, "cache_control")
    short_before = None
    for slot in marked:
        if slot.ttl == "5m":
            short_before = slot.where
        elif short_before is not None:
            where = f"{slot.where}.cache_control.ttl"
            detail = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
            raise ApiError(400, f"{where}: {detail}", where)
    return resolved


def _with_automatic(slots: Sequence[Slot], automatic: CacheControl) -> list[Slot]:
    resolved = list(slots)
    last = next((index for index in reversed(range(len(slots))) if slots[index].is_eligible), None)
    if last is None:
        return resolved
    if slots[last].control is None:
        resolved[last] = replace(slots[last], control=automatic)
    elif slots[last].ttl != automatic.lifetime:
        detail = "the last block has a cache_control of another ttl already"
        raise ApiError(400, f"cache_control: {detail}", "cache_control")
    return resolved
