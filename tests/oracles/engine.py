"""A scheduler with a simulated runner: the shortest loop that serves requests, for tests."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.outputs import SchedulerOutput, SequenceStep
from foreword.core.probe import Probe
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import FinishReason, Lease, Request, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.kv_cache.events import EventLog
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.scheduler import Scheduler
from tests.oracles.guesses import HalfRightGuesses
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


def fork_of(parent: Sequence, sequence_id: int) -> Sequence:
    """A new sequence with the tokens another one has."""
    tokens = list(parent.token_ids)
    return Sequence(
        SequenceId(sequence_id), parent.request_id, parent.index, tokens, parent.prompt_len, parent.params, seed=0
    )


class SimulatedEngine:
    """Adds, aborts and steps, as the engine does, and checks every invariant after every step."""

    def __init__(self, cache: CacheConfig, config: SchedulerConfig, *, guesses: bool = False) -> None:
        """Args: `guesses`: draft as much as there is room for, half of it right."""
        self.events = EventLog()
        self.manager = KVCacheManager(cache, self.events)
        self.runner = SimulatedRunner(cache.num_blocks, cache.block_size)
        self.scheduler = Scheduler(config, self.manager, HalfRightGuesses(self.runner) if guesses else None)
        self.requests: dict[str, Request] = {}
        self.outputs: list[SchedulerOutput] = []
        self.choose: Callable[[Sequence], list[int]] | None = None  # of branching requests
        self._now = 0
        self._next_id = 0

    def add(
        self,
        prompt: SequenceABC[int],
        *,
        namespace: bytes = b"",
        tenant: bytes = b"",
        prefill_only: bool = False,
        probe: Probe | None = None,
        branches: bool = False,
        eos: SequenceABC[int] = (),
        leases: tuple[Lease, ...] = (),
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
        request.branches, request.probe, request.leases = branches, probe, leases
        self.scheduler.add(request)
        self._next_id += len(request.sequences)
        self.requests[request.request_id] = request
        for sequence in request.sequences:
            self.runner.start(sequence.sequence_id, namespace, sequence.index, request.prompt_token_ids)
            self.runner.silent |= {sequence.sequence_id} if prefill_only else set()
            if branches:
                self.runner.let_choose(sequence.sequence_id)
        return request

    def branch(self, parent: Sequence, token_ids: SequenceABC[int]) -> list[Sequence]:
        """Let an undecided sequence go on with each of `token_ids`; returns it and its forks."""
        tokens = [TokenId(token) for token in token_ids]
        children = [fork_of(parent, self._next_id + i) for i in range(len(tokens) - 1)]
        self._next_id += len(children)
        self.scheduler.branch(parent.sequence_id, tokens, children)
        self.runner.go_on(parent.sequence_id, tokens, [child.sequence_id for child in children])
        self.scheduler.check_invariants()
        return [parent, *children]

    def undecided(self, request: Request) -> list[Sequence]:
        """Live sequences of a request whose next token is to be chosen; empty while one of them still computes."""
        live = [sequence for sequence in request.sequences if not sequence.is_finished]
        return live if all(sequence.sequence_id in self.runner.undecided for sequence in live) else []

    def go_on(self) -> None:
        """Make every choice that is due, by `choose`: a beam for which it names no token ends."""
        if self.choose is None:
            return
        for beam in [beam for request in self.requests.values() for beam in self.undecided(request)]:
            token_ids = self.choose(beam)
            if token_ids:
                self.branch(beam, token_ids)
            else:
                self.scheduler.finish(beam.sequence_id, FinishReason.STOP)

    def schedule(self) -> SchedulerOutput | None:
        """Plan a step and check what was planned."""
        self.go_on()
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
        steps = self.take_in(output)
        self.scheduler.check_invariants()
        return steps

    def take_in(self, output: SchedulerOutput) -> list[SequenceStep]:
        """The same, and nothing is checked."""
        steps = self.scheduler.update(output, self.runner.run(output))
        for step in steps:
            self.runner.take(step.sequence_id, [token.token_id for token in step.new_tokens])
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
