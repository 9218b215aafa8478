"""Faults of block bookkeeping that users of other engines reported, as tests of ours; no model is run."""

import random

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.kv_cache.block_hash import block_hash, namespace_hash
from foreword.kv_cache.hash_prefix_cache import HashPrefixCache
from foreword.kv_cache.hashed_run import HashedRun
from foreword.kv_cache.prefix_cache import BlockHash
from tests.oracles.engine import SimulatedEngine

SIZE = 16


def text(seed: int, length: int) -> list[int]:
    return [random.Random(seed * 1_000_003 + i).randrange(1000) for i in range(length)]


def make_engine(num_blocks: int, kind: str = "radix", **limits: int) -> SimulatedEngine:
    cache = CacheConfig(num_blocks=num_blocks, prefix_cache=kind, debug=True)  # type: ignore[arg-type]
    settings = {"max_num_seqs": 8, "token_budget": 64, "max_model_len": 400, **limits}
    return SimulatedEngine(cache, SchedulerConfig(**settings))  # type: ignore[arg-type]


def test_every_hash_leads_to_a_block_whose_tokens_give_that_hash() -> None:
    rng = random.Random(7)
    engine = make_engine(20, "hash")
    index = engine.manager.prefix_cache
    assert isinstance(index, HashPrefixCache)

    def recomputed(run: HashedRun) -> list[BlockHash]:
        """Hashes from the namespace's to that of the run's last block."""
        hashes = recomputed(run.parent) if run.parent else [namespace_hash(b"")]
        for offset in range(run.num_blocks):
            hashes.append(block_hash(hashes[-1], bytes(run.block_tokens(offset))))
        return hashes

    checked = 0
    for _ in range(600):
        action = rng.random()
        if action < 0.25 and engine.scheduler.num_waiting < 6:
            engine.add(
                text(rng.randrange(3), rng.randrange(1, 70)) + text(rng.randrange(50), rng.randrange(9)),
                n=rng.choice([1, 1, 2]),
                max_tokens=rng.randrange(1, 30),
            )
        elif action < 0.3 and engine.requests:
            engine.scheduler.abort(rng.choice(list(engine.requests.values())).request_id)
        else:
            engine.step()
        for run in index._runs():
            hashes = recomputed(run)[-run.num_blocks :]
            assert hashes == [run.hash_at(offset) for offset in range(run.num_blocks)]
            assert run.key == hashes[0]
            assert all(engine.manager.pool.is_findable(block) for block in run.blocks)
            checked += run.num_blocks

    assert checked > 1000
    assert engine.manager.stats.evicted_blocks > 100
    assert engine.manager.stats.hit_tokens > 0


def test_an_admission_that_found_no_room_counts_nothing_until_it_succeeds() -> None:
    engine = make_engine(10)
    prompt = text(1, 40)
    engine.add(prompt, max_tokens=1)
    engine.run()
    engine.add(text(2, 96), max_tokens=10)  # 7 of 10 blocks; the other 3 hold the prompt
    engine.step()
    request = engine.add([*prompt, *text(3, 40)], max_tokens=4)  # shares 2, needs 3 more
    waited = 0
    while engine.scheduler.num_waiting:
        assert request.sequences[0].usage.cached_tokens == 0
        engine.step()
        waited += 1
    engine.run()

    stats = engine.manager.stats
    every = [r.sequences[0].usage for r in engine.requests.values()]
    assert waited > 5
    assert stats.num_queries == 3
    assert [usage.cached_tokens for usage in every] == [0, 0, 40]
    assert stats.hit_tokens == engine.scheduler.counters.cached_tokens == 40
