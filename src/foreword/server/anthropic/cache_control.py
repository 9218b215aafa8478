"""Anthropic's cache breakpoints: accepted and checked by its rules.

They decide nothing here: whatever matches is read, whatever is computed is stored, and the account says so. A rule
broken is a 400 all the same, as it would be at Anthropic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from foreword.server.errors import ApiError

MAX_BREAKPOINTS = 4
DEFAULT_TTL = "5m"


class CacheControl(msgspec.Struct, forbid_unknown_fields=True):
    """A breakpoint."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def lifetime(self) -> str:
        """Its time to live, the default filled in."""
        return self.ttl or DEFAULT_TTL


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the prompt that may carry a breakpoint."""

    where: str
    control: CacheControl | None
    is_eligible: bool = True  # empty text can't be cached


def check_breakpoints(slots: Sequence[Slot], automatic: CacheControl | None) -> None:
    """Check explicit breakpoints, and the automatic one of the top level, which takes the last place that can have one.

    Raises:
        ApiError: 400: more than four; a 1h one after a 5m one; one on empty text; an automatic one that contradicts.
    """
    marked = [slot for slot in slots if slot.control is not None]
    for slot in marked:
        if not slot.is_eligible:
            raise ApiError(400, f"{slot.where}: cache_control cannot be set for empty text blocks", slot.where)
    if automatic is not None:
        marked = _with_automatic(slots, marked, automatic)
    if len(marked) > MAX_BREAKPOINTS:
        found = f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {len(marked)}."
        raise ApiError(400, found, "cache_control")
    short_before = None
    for slot in marked:
        if slot.control is None:
            continue
        if slot.control.lifetime == "5m":
            short_before = slot.where
        elif short_before is not None:
            where = f"{slot.where}.cache_control.ttl"
            detail = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
            raise ApiError(400, f"{where}: {detail}", where)


def _with_automatic(slots: Sequence[Slot], marked: Sequence[Slot], automatic: CacheControl) -> list[Slot]:
    last = next((slot for slot in reversed(slots) if slot.is_eligible), None)
    if last is None:
        return list(marked)
    if last.control is None:
        return [*marked, Slot(last.where, automatic)]
    if last.control.lifetime != automatic.lifetime:
        detail = "the last block has a cache_control of another ttl already"
        raise ApiError(400, f"cache_control: {detail}", "cache_control")
    return list(marked)
