"""Counters of an engine, read at one moment."""

from msgspec import Struct

from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.scheduler import Scheduler


class EngineStats(Struct, frozen=True, kw_only=True):
    """Since the engine started, in tokens unless named otherwise.

    `computed = prefilled + decoded + recomputed + drafted - accepted`.
    """

    num_steps: int
    computed_tokens: int
    prefilled_tokens: int
    decoded_tokens: int
    recomputed_tokens: int
    cached_tokens: int
    sampled_tokens: int
    drafted_tokens: int  # computed on the guess that they would be drawn
    accepted_tokens: int  # of these, drawn
    num_preemptions: int
    waste_ratio: float  # share of reserved slots that held no token, over all steps
    num_waiting: int
    num_running: int
    num_blocks: int
    free_blocks: int
    held_blocks: int
    cached_blocks: int
    queried_tokens: int
    hit_tokens: int
    copied_blocks: int
    evicted_blocks: int
    deduplicated_blocks: int
    pinned_blocks: int  # held, though no sequence needs them
    max_num_seqs: int  # most sequences that may run at once

    @property
    def num_startable(self) -> int:
        """Sequences that the next step could begin; none where others wait for it."""
        return 0 if self.num_waiting else max(0, self.max_num_seqs - self.num_running)


def engine_stats(scheduler: Scheduler, manager: KVCacheManager) -> EngineStats:
    """Counters and the pool as they stand."""
    counters, cache, pool = scheduler.counters, manager.stats, manager.pool
    return EngineStats(
        num_steps=counters.num_steps,
        computed_tokens=counters.computed_tokens,
        prefilled_tokens=counters.prefilled_tokens,
        decoded_tokens=counters.decoded_tokens,
        recomputed_tokens=counters.recomputed_tokens,
        cached_tokens=counters.cached_tokens,
        sampled_tokens=counters.sampled_tokens,
        drafted_tokens=counters.drafted_tokens,
        accepted_tokens=counters.accepted_tokens,
        num_preemptions=counters.num_preemptions,
        waste_ratio=counters.waste_ratio,
        num_waiting=scheduler.num_waiting,
        num_running=scheduler.num_running,
        num_blocks=pool.num_blocks,
        free_blocks=pool.num_free,
        held_blocks=pool.num_held,
        cached_blocks=pool.num_blocks - pool.num_free - pool.num_held,
        queried_tokens=cache.queried_tokens,
        hit_tokens=cache.hit_tokens,
        copied_blocks=cache.copied_blocks,
        evicted_blocks=cache.evicted_blocks,
        deduplicated_blocks=cache.deduplicated_blocks,
        pinned_blocks=manager.num_pinned_blocks,
        max_num_seqs=scheduler.config.max_num_seqs,
    )
