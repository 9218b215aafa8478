"""Counters of an engine, read at one moment."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Since the engine started, in tokens unless named otherwise. `computed = prefilled + decoded + recomputed`."""

    num_steps: int
    computed_tokens: int
    prefilled_tokens: int
    decoded_tokens: int
    recomputed_tokens: int
    cached_tokens: int
    sampled_tokens: int
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
