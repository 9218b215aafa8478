"""A scheduler with a simulated runner: the shortest loop that serves requests, for tests."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.outputs import SchedulerOutput, SequenceStep
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Request, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.kv_cache.events import EventLog
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.scheduler import Scheduler
from tests.oracles.simulated_model import SimulatedRunner


def make_request(
    name: str,
    first_id: int,
    prompt: SequenceABC[int],
    params: SamplingParams,
    *,
    namespace: bytes = b"",
    tenant: bytes = b"",
    prefill_only: bool = False,
    eos_token_ids: frozenset[TokenId] = frozenset(),
) -> Request:
    """A request with its `n` sequences, numbered from `first_id`."""
    tokens = tuple(TokenId(token) for token in prompt)
    request = Request(
        RequestId(name), tokens, params, eos_token_ids, namespace, tenant=tenant, prefill_only=prefill_only
    )
    request.sequences = [
        Sequence(SequenceId(first_id + i), request.request_id, i, list(tokens), len(tokens), params, seed=0)
        for i in range(params.n)
    ]
    return request


class SimulatedEngine:
    """Adds, aborts and steps, as the engine does, and checks every invariant after every step."""

    def __init__(self, cache: CacheConfig, config: SchedulerConfig) -> None:
        self.events = EventLog()
        self.manager = KVCacheManager(cache, self.events)
        self.scheduler = Scheduler(config, self.manager)
        self.runner = SimulatedRunner(cache.num_blocks, cache.block_size)
        self.requests: dict[str, Request] = {}
        self.outputs: list[SchedulerOutput] = []
        self._now = 0
        self._next_id = 0

    def add(
        self,
        prompt: SequenceABC[int],
        *,
        namespace: bytes = b"",
        tenant: bytes = b"",
        prefill_only: bool = False,
        eos: SequenceABC[int] = (),
        **params: object,
    ) -> Request:
        """Queue a request of `prompt` and return it."""
        settings = SamplingParams(**{"ignore_eos": not eos, **params})  # type: ignore[arg-type]
        request = make_request(
            f"r{self._next_id}",
            self._next_id,
            prompt,
            settings,
            namespace=namespace,
            tenant=tenant,
            prefill_only=prefill_only,
            eos_token_ids=frozenset(TokenId(token) for token in eos),
        )
        self.scheduler.add(request)
        self._next_id += len(request.sequences)
        self.requests[request.request_id] = request
        for sequence in request.sequences:
            self.runner.start(sequence.sequence_id, namespace, sequence.index, request.prompt_token_ids)
            self.runner.silent |= {sequence.sequence_id} if prefill_only else set()
        return request

    def schedule(self) -> SchedulerOutput | None:
        """Plan a step and check what was planned."""
        self._now += 1
        output = self.scheduler.schedule(self._now)
        self.scheduler.check_invariants()
        if output is not None:
            self._check_plan(output)
            self.outputs.append(output)
        return output

    def step(self) -> list[SequenceStep]:
        """Plan, run and take in one step."""
        output = self.schedule()
        return self.complete(output) if output is not None else []

    def complete(self, output: SchedulerOutput) -> list[SequenceStep]:
        """Run and take in a step planned before."""
        steps = self.scheduler.update(output, self.runner.run(output))
        self.scheduler.check_invariants()
        return steps

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nothing is left to do; raises AssertionError when that does not happen."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished:
                return
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")

    def run_until(self, condition: Callable[[], bool], max_steps: int = 1000) -> None:
        """Step until `condition` holds; raises AssertionError when it never does."""
        for _ in range(max_steps):
            if condition():
                return
            self.step()
        raise AssertionError("the condition never held")

    def _check_plan(self, output: SchedulerOutput) -> None:
        assert 0 < output.num_tokens <= self.scheduler.config.token_budget
        assert len(output.sequences) <= self.scheduler.config.max_num_seqs
        readers: dict[int, int] = {}
        for request in self.requests.values():
            for sequence in request.sequences:
                if self.manager.holds(sequence):
                    for block in self.manager.block_table(sequence).ids:
                        readers[block] = readers.get(block, 0) + 1
        size = self.manager.config.block_size
        for scheduled in output.sequences:
            end = scheduled.start + len(scheduled.token_ids)
            for index in range(scheduled.start // size, -(-end // size)):
                block = scheduled.block_table[index]
                assert readers[block] == 1, "a block is written that another table holds"
                assert not self.manager.pool.is_findable(block), "a findable block is written"
        destinations = {copy.destination for copy in output.copies}
        assert destinations <= set(output.fresh_blocks)
        assert len(set(output.fresh_blocks)) == len(output.fresh_blocks)
        assert not {copy.source for copy in output.copies} & set(output.fresh_blocks)
