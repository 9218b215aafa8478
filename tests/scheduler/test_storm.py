"""A storm in one run (R-19): requests come, share, fork, are pushed out, fail and leave at random; answers are exact,
nothing is left, and the same seed gives the same run."""

import hashlib
import random

import pytest

from foreword.core.config import CacheConfig, PrefixCacheKind, SchedulerConfig
from foreword.core.errors import QueueFullError
from foreword.core.sequence import FinishReason, Request
from tests.oracles.engine import SimulatedEngine
from tests.oracles.simulated_model import sequential_generate
from tests.profile import DEEP

COUNT = 5000 if DEEP else 120
SEED = 18  # the short run pushes requests out with each kind of cache


class Storm:
    """One run. `digest` is of everything that was planned."""

    def __init__(self, prefix_cache: PrefixCacheKind, seed: int) -> None:
        self._rng = random.Random(seed)
        cache = CacheConfig(num_blocks=18, block_size=8, debug=True, prefix_cache=prefix_cache)
        config = SchedulerConfig(max_num_seqs=8, token_budget=48, max_model_len=100, max_waiting=30, watermark=0.0)
        self._engine = SimulatedEngine(cache, config, guesses=True)
        self._digest = hashlib.sha256()
        self.num_added = self.num_aborted = self.num_finished = self.num_failed_steps = 0

    def run(self, count: int) -> str:
        """Let so many requests come; returns the digest."""
        engine, rng = self._engine, self._rng
        while self.num_added < count or engine.scheduler.has_unfinished:
            if self.num_added < count and rng.random() < 0.7:
                self._add()
            if engine.requests and rng.random() < 0.1:
                self._abort(rng.choice(list(engine.requests)))
            self._step(fails=rng.random() < 0.03)
            self._check_finished()
        assert engine.manager.pool.num_held == 0
        engine.manager.reset()
        engine.scheduler.check_invariants()
        assert engine.manager.pool.num_free == engine.manager.pool.num_blocks
        return self._digest.hexdigest()

    @property
    def num_preemptions(self) -> int:
        return self._engine.scheduler.counters.num_preemptions

    @property
    def hit_tokens(self) -> int:
        return self._engine.manager.stats.hit_tokens

    def _add(self) -> None:
        rng = self._rng
        prompt = [rng.randrange(3)] * rng.randrange(1, 40) + [rng.randrange(3) for _ in range(rng.randrange(1, 20))]
        try:
            self._engine.add(
                prompt,
                namespace=rng.choice([b"", b"a"]),
                tenant=rng.choice([b"", b"t"]),
                n=rng.choice([1, 1, 2, 3, 4]),
                max_tokens=rng.randrange(1, 20),
            )
            self.num_added += 1
        except QueueFullError:
            pass

    def _abort(self, name: str) -> None:
        self._engine.scheduler.abort(self._engine.requests.pop(name).request_id)
        self.num_aborted += 1
        self._engine.scheduler.check_invariants()

    def _step(self, *, fails: bool) -> None:
        output = self._engine.schedule()
        if output is None:
            return
        self._digest.update(repr(output).encode())
        self._engine.outputs.clear()
        if fails:
            self._engine.scheduler.discard(output)
            self._engine.scheduler.check_invariants()
            self.num_failed_steps += 1
        else:
            self._engine.complete(output)

    def _check_finished(self) -> None:
        for name, request in list(self._engine.requests.items()):
            if all(sequence.is_finished for sequence in request.sequences):
                check_answers(request, self._engine.runner.vocab_size)
                del self._engine.requests[name]
                self.num_finished += 1


def check_answers(request: Request, vocab_size: int) -> None:
    for sequence in request.sequences:
        assert sequence.finish_reason is FinishReason.LENGTH
        got = sequence.token_ids[sequence.prompt_len :]
        prompt = request.prompt_token_ids
        assert got == sequential_generate(request.namespace, prompt, len(got), sequence.index, vocab_size)


@pytest.mark.parametrize("prefix_cache", ["none", "hash", "radix"])
def test_a_storm_of_requests_is_exact_leaves_nothing_and_can_be_played_again(prefix_cache: PrefixCacheKind) -> None:
    storm = Storm(prefix_cache, SEED)

    digest = storm.run(COUNT)

    assert storm.num_finished + storm.num_aborted == storm.num_added == COUNT
    assert min(storm.num_aborted, storm.num_failed_steps, storm.num_preemptions) > 0
    assert (storm.hit_tokens > 0) == (prefix_cache != "none")
    print(f"{storm.num_finished} finished, {storm.num_aborted} aborted, {storm.num_preemptions} preempted")
    again = Storm(prefix_cache, SEED)
    assert again.run(COUNT) == digest
