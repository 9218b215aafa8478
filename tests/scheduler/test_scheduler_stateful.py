"""Random life of a scheduler: every plan obeys laws 1 and 2, every answer is exact (law 5), nothing leaks (law 7)."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import CapacityError, QueueFullError
from foreword.core.outputs import SchedulerOutput
from foreword.core.sequence import FinishReason, Lease, Request, Sequence
from tests.oracles.engine import SimulatedEngine
from tests.oracles.simulated_model import sequential_generate


class SchedulerMachine(RuleBasedStateMachine):
    """Add, step, abort, finish and fail in any order, in a pool that is far too small."""

    prefix_cache = "none"

    @initialize(
        num_blocks=st.integers(4, 20),
        budget=st.sampled_from([1, 2, 5, 8, 17, 64]),
        max_num_seqs=st.integers(1, 6),
        watermark=st.sampled_from([0.0, 0.1, 0.4]),
        reuse=st.sampled_from(["tenant", "off"]),
        guesses=st.booleans(),
    )
    def start(
        self, num_blocks: int, budget: int, max_num_seqs: int, watermark: float, reuse: str, guesses: bool
    ) -> None:
        cache = CacheConfig(
            num_blocks=num_blocks,
            block_size=8,
            debug=True,
            prefix_cache=self.prefix_cache,  # type: ignore[arg-type]
            reuse_generated=reuse,  # type: ignore[arg-type]
        )
        config = SchedulerConfig(
            max_num_seqs=max_num_seqs, token_budget=budget, max_model_len=100, watermark=watermark, max_waiting=12
        )
        self.engine = SimulatedEngine(cache, config, guesses=guesses)
        self.engine.choose = self.choose
        self.pending: SchedulerOutput | None = None

    def choose(self, beam: Sequence) -> list[int]:
        """Some beams end, some go on, some in several copies; none beyond its end."""
        limit = min(100, beam.prompt_len + (beam.params.max_tokens or 100))
        if beam.num_tokens + 1 >= limit:
            return []
        num_live = sum(not other.is_finished for other in self.engine.requests[beam.request_id].sequences)
        copies = (beam.sequence_id + beam.num_tokens) % 4 if num_live < 4 else beam.sequence_id % 2
        return [(beam.num_tokens + i) % 7 for i in range(copies)]

    @property
    def requests(self) -> list[Request]:
        return list(self.engine.requests.values())

    @rule(
        head=st.integers(0, 30),
        tail=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        n=st.sampled_from([1, 1, 2, 3]),
        max_tokens=st.integers(1, 40),
        tenant=st.sampled_from([b"a", b"b"]),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
        leases=st.lists(st.builds(Lease, st.integers(1, 50), st.integers(1, 60), st.integers(1, 2)), max_size=2),
    )
    def add(
        self,
        head: int,
        tail: list[int],
        n: int,
        max_tokens: int,
        tenant: bytes,
        prompt_logprobs: int | None,
        leases: list[Lease],
    ) -> None:
        settings = {"max_tokens": max_tokens, "namespace": tenant, "prompt_logprobs": prompt_logprobs}
        self.queue(head, tail, n=n, leases=tuple(leases), **settings)

    @rule(
        head=st.integers(0, 30),
        tail=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        max_tokens=st.integers(1, 30),
        tenant=st.sampled_from([b"a", b"b"]),
    )
    def search(self, head: int, tail: list[int], max_tokens: int, tenant: bytes) -> None:
        self.queue(head, tail, max_tokens=max_tokens, namespace=tenant, branches=True)

    def queue(self, head: int, tail: list[int], **settings: object) -> None:
        before = self.engine.scheduler.num_waiting
        try:
            self.engine.add([3] * head + tail, **settings)  # type: ignore[arg-type]
        except (CapacityError, QueueFullError):
            assert self.engine.scheduler.num_waiting == before

    @precondition(lambda self: self.pending is None)
    @rule()
    def schedule(self) -> None:
        self.pending = self.engine.schedule()
        assert (self.pending is None) == (not self.engine.scheduler.has_unfinished)

    @precondition(lambda self: self.pending is not None)
    @rule(fails=st.sampled_from([False] * 9 + [True]), cut=st.integers(0, 9))
    def update(self, fails: bool, cut: int) -> None:
        assert self.pending is not None
        output, self.pending = self.pending, None
        if fails:
            self.engine.scheduler.discard(output)
        else:
            steps = self.engine.complete(output)
            if cut < 2:  # text ends in the middle of what a step has drawn
                for step in steps:
                    if step.finish_reason is None:
                        kept = step.usage.completion_tokens - len(step.new_tokens) + 1 + cut
                        self.engine.scheduler.finish(step.sequence_id, FinishReason.STOP, kept)
        self.engine.scheduler.check_invariants()

    @precondition(lambda self: self.pending is None)
    @rule(count=st.integers(1, 20))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        request = data.draw(st.sampled_from(self.requests))
        target = request.request_id if whole else data.draw(st.sampled_from(request.sequences)).sequence_id
        self.engine.scheduler.abort(target)
        self.engine.scheduler.check_invariants()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        self.engine.scheduler.finish(data.draw(st.sampled_from(request.sequences)).sequence_id, FinishReason.STOP)
        self.engine.scheduler.check_invariants()

    @rule()
    def reset(self) -> None:
        self.engine.manager.reset()
        self.engine.scheduler.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.pending is not None:
            self.engine.complete(self.pending)
        self.engine.run()
        for request in self.requests:
            for sequence in request.sequences:
                if request.branches:
                    self.check_beam(sequence)
                else:
                    self.check_answer(request, sequence.index)
        self.engine.manager.reset()
        assert self.engine.manager.pool.num_free == self.engine.manager.pool.num_blocks

    def check_beam(self, beam: Sequence) -> None:
        usage = beam.usage
        assert beam.is_finished
        assert beam.num_preemptions <= 3
        if beam.num_output_tokens:
            assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens

    def check_answer(self, request: Request, index: int) -> None:
        sequence = request.sequences[index]
        got = sequence.token_ids[sequence.prompt_len :]
        assert got == sequential_generate(request.namespace, request.prompt_token_ids, len(got), index, 7)
        assert sequence.num_preemptions <= 3
        usage = sequence.usage
        assert usage.cached_tokens <= usage.prompt_tokens - 1
        assert usage.completion_tokens == len(got)
        if got:
            assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
        if sequence.finish_reason is FinishReason.LENGTH:
            assert len(got) == min(request.params.max_tokens or 100, 100 - sequence.prompt_len)


TestSchedulerMachine = SchedulerMachine.TestCase


class RadixSchedulerMachine(SchedulerMachine):
    """The same life with the radix tree."""

    prefix_cache = "radix"


class HashSchedulerMachine(SchedulerMachine):
    """The same life with the hash index."""

    prefix_cache = "hash"


TestRadixSchedulerMachine = RadixSchedulerMachine.TestCase
TestHashSchedulerMachine = HashSchedulerMachine.TestCase
