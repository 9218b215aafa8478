"""A replay from end to end: one trace, every policy and capacity asked for, beside what no cache can beat."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from foreword.core.config import CacheConfig, PrefixCacheKind, RetentionKind
from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.replay.index_replay import IndexReplay
from foreword.replay.optimum import Optimum, Uses
from foreword.replay.prefix_tree import PrefixTree
from foreword.replay.scheduler_replay import SchedulerReplay
from foreword.replay.tally import Tally
from foreword.replay.trace import Trace

Tell = Callable[[str, float], None]
"""Called with what is being done and how much of it is, from 0 to 1."""

MAX_CAPACITY = 2**26
DEFAULT_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Capacities where none are asked for: of the trace's distinct blocks."""


class ReplayOptions(Struct, frozen=True, kw_only=True):
    """What is compared. No capacities: shares of the trace's distinct blocks."""

    policies: tuple[RetentionKind, ...] = ("slru",)
    capacities: tuple[int, ...] = ()
    index: PrefixCacheKind = "radix"
    scheduler: bool = False  # go through scheduler and manager, not only through the index
    optimum: bool = True

    def __post_init__(self) -> None:
        for capacity in self.capacities:
            if not 1 <= capacity <= MAX_CAPACITY:
                raise InvalidRequestError("capacity", f"blocks from 1 to {MAX_CAPACITY:,}", capacity)


class Row(Struct, frozen=True):
    """One policy ("optimum" among them) at one capacity."""

    policy: str
    capacity: int
    tally: Tally


class ReplayResult(Struct, frozen=True):
    """Everything a replay found."""

    trace: str
    trace_format: str
    block_size: int
    options: ReplayOptions
    distinct_blocks: int
    unbounded: Tally
    rows: tuple[Row, ...]

    def of_policy(self, policy: str) -> list[Row]:
        """The rows of one policy, by capacity."""
        return sorted((row for row in self.rows if row.policy == policy), key=lambda row: row.capacity)

    def as_json(self) -> dict[str, object]:
        """The result for machines."""
        return {
            "trace": self.trace,
            "format": self.trace_format,
            "block_size": self.block_size,
            "index": self.options.index,
            "scheduler": self.options.scheduler,
            "distinct_blocks": self.distinct_blocks,
            "infinite": _figures(self.unbounded),
            "rows": [{"policy": row.policy, "capacity": row.capacity, **_figures(row.tally)} for row in self.rows],
        }


def replay(trace: Trace, options: ReplayOptions, tell: Tell = lambda what, done: None) -> ReplayResult:
    """Read the trace twice: for what can be known with all of it in sight, then through all caches at once.

    Raises:
        ForewordError: the trace is malformed, holds no request, or changed between the two readings.
        InvalidRequestError: the index has no such block size.
    """
    tree = PrefixTree(trace.layout)
    for request in trace.requests(lambda done, size: tell("reading", done / size)):
        tree.add(request)
    if not tree.ends:
        needs = trace.format.needs
        raise ForewordError(f"{trace.path}: holds no request" + (f": each ends before {needs}" if needs else ""))
    capacities = options.capacities or _default_capacities(tree)
    caches = {
        (policy, capacity): _cache(trace, options, policy, capacity)
        for capacity in capacities
        for policy in options.policies
    }
    num_requests = 0
    for request in trace.requests(lambda done, size: tell("replaying", done / size)):
        num_requests += 1
        for cache in caches.values():
            cache.run(request)
    if num_requests != len(tree.ends):
        raise ForewordError(f"{trace.path}: changed while it was read")
    rows = [Row(policy, capacity, cache.tally) for (policy, capacity), cache in caches.items()]
    if options.optimum:
        uses = Uses(tree)
        for number, capacity in enumerate(capacities):
            tell("optimum", number / len(capacities))
            rows.append(Row("optimum", capacity, Optimum(tree, uses, capacity).run()))
    return ReplayResult(
        trace=trace.path.name,
        trace_format=trace.format.name,
        block_size=trace.layout.block_size,
        options=options,
        distinct_blocks=tree.distinct_blocks,
        unbounded=tree.unbounded,
        rows=tuple(rows),
    )


def _cache(trace: Trace, options: ReplayOptions, policy: RetentionKind, capacity: int) -> IndexReplay | SchedulerReplay:
    config = CacheConfig(
        num_blocks=capacity, block_size=trace.layout.index_block, prefix_cache=options.index, retention=policy
    )
    make = SchedulerReplay if options.scheduler else IndexReplay
    return make(config, trace.layout)


def _default_capacities(tree: PrefixTree) -> tuple[int, ...]:
    """Shares of the distinct blocks, none too small for the longest request, one block to spare for its last token."""
    wanted = (max(tree.longest + 1, round(share * tree.distinct_blocks)) for share in DEFAULT_SHARES)
    return tuple(sorted(set(wanted)))


def _figures(tally: Tally) -> Mapping[str, object]:
    return {
        "requests": tally.requests,
        "refused": tally.refused,
        "tokens": tally.tokens,
        "hit_tokens": tally.hit_tokens,
        "token_hit_ratio": tally.token_hit_ratio,
        "blocks": tally.blocks,
        "hit_blocks": tally.hit_blocks,
        "block_hit_ratio": tally.block_hit_ratio,
        "evicted_blocks": tally.evicted_blocks,
    }
