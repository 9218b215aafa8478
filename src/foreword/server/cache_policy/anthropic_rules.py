"""Anthropic's rules of prompt caching, over positions of tokens alone.

    blocks      b0      b1      b2        b3       b4              rest
    tokens      |-------|-------|---------|--------|---------------|----|
    breakpoints                 1h                 5m
    entries             ^ written by an earlier request
                        A       B                  C                 T

    read A, write B - A for an hour and C - B for five minutes, input T - C

A prefix is written at breakpoints only, and found by walking back from a breakpoint over at most 20 positions.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from foreword.server.cache_policy.ledger import Ledger, PrefixDigests, Write
from foreword.server.cache_policy.outcome import Outcome
from foreword.server.cache_policy.points import LIFETIMES_S

LOOKBACK = 20
ONE_POSITION = frozenset({"tool_use", "tool_result"})
"""Kinds of blocks of which consecutive ones count as one position."""


class Block(Struct, frozen=True):
    """A block that may carry a breakpoint."""

    kind: str = "text"
    ttl: str | None = None  # of the breakpoint on it


def decide(
    blocks: Sequence[Block],
    end_of: Callable[[int], int],
    digests: PrefixDigests,
    ledger: Ledger,
    minimum: int,
    now: float,
) -> Outcome:
    """What a request reads and writes. Renews what it reads.

    Args:
        blocks: in the order of the prompt.
        end_of: tokens up to the end of a block, asked for where needed.
        digests: of the prompt's prefixes.
        ledger: what earlier requests have written.
        minimum: fewest tokens of a prefix that is cached.
        now: when the request came.
    """
    marked = [(i, end_of(i), ttl) for i, block in enumerate(blocks) if (ttl := block.ttl) is not None]
    marked = [mark for mark in marked if mark[1] >= minimum]
    read = _longest_hit([index for index, _, _ in marked], blocks, end_of, digests, ledger, now)
    new = [(end, ttl) for _, end, ttl in marked if end > read]
    one_hour_end = max((end for end, ttl in new if ttl == "1h"), default=read)
    last_end = max((end for end, _ in new), default=read)
    renewed = [digests.at(end) for end in {read, *(end for _, end, _ in marked if end < read)} if end]
    ledger.renew(renewed, now)
    return Outcome(
        read=read,
        written=last_end - read,
        written_1h=one_hour_end - read,
        renewed=tuple(renewed),
        writes=tuple(Write(digest=digests.at(end), lifetime_s=LIFETIMES_S[ttl]) for end, ttl in new),
    )


def _longest_hit(
    marked: Sequence[int],
    blocks: Sequence[Block],
    end_of: Callable[[int], int],
    digests: PrefixDigests,
    ledger: Ledger,
    now: float,
) -> int:
    for start in reversed(marked):
        for index in positions_back(blocks, start):
            end = end_of(index)
            if end and ledger.has(digests.at(end), now):
                return end
    return 0


def positions_back(blocks: Sequence[Block], start: int) -> Iterator[int]:
    """Blocks at which a breakpoint on block `start` looks for an entry, nearest first."""
    num_positions = 0
    for index in range(start, -1, -1):
        continues = (
            index < start and blocks[index].kind in ONE_POSITION and blocks[index].kind == blocks[index + 1].kind
        )
        num_positions += not continues
        if num_positions > LOOKBACK:
            return
        yield index
