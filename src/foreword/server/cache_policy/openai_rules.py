"""OpenAI's rules of prompt caching, of both generations, over positions of tokens alone."""

import itertools
from collections.abc import Callable, Sequence

from msgspec import Struct

from foreword.server.cache_policy.ledger import Ledger, PrefixDigests, Write
from foreword.server.cache_policy.outcome import Outcome
from foreword.server.cache_policy.points import LIFETIMES_S

MAX_WRITES = 4
FIRST_MARKERS, LATEST_MARKERS, LATEST_ENDS = 2, 50, 20
"""Breakpoints of a request at which entries are looked for, beside the implicit one and the opening instructions."""
INTERVAL = 128
IN_MEMORY_MOST_S = 3600.0


class Point(Struct, frozen=True):
    """The end of a part, or of a message."""

    role: str
    ttl: str | None = None  # of the explicit breakpoint here
    is_message_end: bool = True


def decide(
    points: Sequence[Point],
    end_of: Callable[[int], int],
    digests: PrefixDigests,
    ledger: Ledger,
    *,
    is_explicit: bool,
    ttl: str,
    minimum: int,
    now: float,
) -> Outcome:
    """What a request to a model since GPT-5.6 reads and writes. Renews what it reads.

    Args:
        points: ends of messages and explicit breakpoints, in the order of the prompt.
        end_of: tokens up to a point, asked for where needed.
        is_explicit: the request's mode: no breakpoint but those it names.
        ttl: lifetime of the implicit breakpoint.
        digests: of the prompt's prefixes.
        ledger: what earlier requests have written.
        minimum: fewest tokens of a prefix that is cached.
        now: when the request came.
    """
    markers = [index for index, point in enumerate(points) if point.ttl is not None]
    ends = [] if is_explicit else eligible_ends(points)
    opening = [] if is_explicit else _opening_end(points)
    implicit = ends[-1:] or opening
    looked_at = {*markers[:FIRST_MARKERS], *markers[-LATEST_MARKERS:], *ends[-LATEST_ENDS - 1 :], *opening}
    read = 0
    for index in sorted(looked_at, reverse=True):
        end = end_of(index)
        if end >= minimum and ledger.has(digests.at(end), now):
            read = end
            break
    kept = {end_of(index): points[index].ttl or ttl for index in markers[-(MAX_WRITES - len(implicit)) :]}
    kept |= {end_of(index): points[index].ttl or ttl for index in implicit}
    new = {end: lifetime for end, lifetime in kept.items() if end >= minimum and end > read}
    renewed = [digests.at(end) for end in {read, *(end for end in kept if end < read)} if end >= minimum]
    ledger.renew(renewed, now)
    return Outcome(
        read=read,
        written=max(new, default=read) - read,
        renewed=tuple(renewed),
        writes=tuple(Write(digest=digests.at(end), lifetime_s=LIFETIMES_S[life]) for end, life in new.items()),
    )


def eligible_ends(points: Sequence[Point]) -> list[int]:
    """Ends at which an implicit breakpoint may fall: of user messages, and of the last of consecutive tool results."""
    ends = [index for index, point in enumerate(points) if point.is_message_end]
    following = {index: points[after].role for index, after in itertools.pairwise(ends)}
    return [
        index
        for index in ends
        if points[index].role == "user" or (points[index].role == "tool" and following.get(index) != "tool")
    ]


def _opening_end(points: Sequence[Point]) -> list[int]:
    """The end of the last of the instructions that open the conversation; empty without any."""
    found: list[int] = []
    for index, point in enumerate(points):
        if point.role not in ("developer", "system"):
            break
        found = [index] if point.is_message_end else found
    return found


def decide_by_interval(
    total: int, digests: PrefixDigests, ledger: Ledger, *, retention: str, minimum: int, now: float
) -> Outcome:
    """What a request to an earlier model reads: the longest stored run of whole intervals. It tells of no writes."""
    ends = range(-(-minimum // INTERVAL) * INTERVAL, total + 1, INTERVAL) if total >= minimum else range(0)
    read = next((end for end in reversed(ends) if ledger.has(digests.at(end), now)), 0)
    most_s = IN_MEMORY_MOST_S if retention == "in_memory" else LIFETIMES_S["24h"]
    lifetime_s = LIFETIMES_S["in_memory"] if retention == "in_memory" else LIFETIMES_S["30m"]
    renewed = [digests.at(end) for end in ends if end <= read]
    ledger.renew(renewed, now)
    new = [digests.at(end) for end in ends if end > read]
    writes = [Write(digest=digest, lifetime_s=lifetime_s, most_s=most_s) for digest in new]
    return Outcome(read=read, renewed=tuple(renewed), writes=tuple(writes))
