"""One sequence going on as several: the forks of beam search.

    step t     P computes its last known token; its logits are told above, it keeps its blocks and leaves its seat
    above      the choice: P goes on with token a, a new sequence C with token b
    branch     P ..... a        C's table names the blocks of P, each with one holder more
               C ..... b
    step t+1   whoever writes into a block that both hold is given a copy of it first; the prompt's whole blocks, which
               nobody writes to, stay shared to the end

Whoever awaits a choice needs no block any more, since its logits are known: in a pool that is too small for all
beams at once they take turns, and what was taken from one is computed again.
"""

from collections.abc import Container
from collections.abc import Sequence as SequenceABC

from msgspec.structs import replace

from foreword.core.config import SchedulerConfig
from foreword.core.errors import InvariantError
from foreword.core.sequence import Sequence, SequenceStatus
from foreword.core.types import SequenceId, TokenId
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.policy import MAX_PREEMPTIONS
from foreword.scheduler.queues import SequenceQueue
from foreword.scheduler.starting import take_blocks


class Branching:
    """Moves sequences out of `running` while their next token is chosen above, and back in one or several copies."""

    def __init__(
        self, config: SchedulerConfig, manager: KVCacheManager, waiting: SequenceQueue, running: SequenceQueue
    ) -> None:
        self.undecided = SequenceQueue()
        self._config = config
        self._manager = manager
        self._waiting = waiting
        self._running = running

    def await_choice(self, sequence: Sequence) -> None:
        """All a running sequence knows is computed, and its logits are told: it leaves its seat."""
        self._running.discard(sequence)
        self.undecided.append(sequence)
        sequence.status = SequenceStatus.WAITING
        if self._config.recompute_all:
            take_blocks([sequence], self._manager)

    def check(
        self,
        parent_id: SequenceId,
        token_ids: SequenceABC[TokenId],
        children: SequenceABC[Sequence],
        known: Container[SequenceId],
    ) -> Sequence:
        """The undecided sequence `parent_id`, if it can go on with `token_ids` in itself and `children`.

        Raises:
            InvariantError: it is not undecided, or the children are not new sequences of its tokens, one for each
                token after the first.
        """
        parent = next((sequence for sequence in self.undecided if sequence.sequence_id == parent_id), None)
        if parent is None or len(token_ids) != 1 + len(children):
            raise InvariantError(f"sequence {parent_id} cannot take {len(token_ids)} tokens in {len(children)} forks")
        ids = {child.sequence_id for child in children}
        if len(ids) != len(children) or any(child_id in known for child_id in ids):
            raise InvariantError(f"forks of sequence {parent_id} need new ids, got {sorted(ids)}")
        if any(c.token_ids != parent.token_ids or c.request_id != parent.request_id for c in children):
            raise InvariantError(f"a fork of sequence {parent_id} has other tokens, or is of another request")
        return parent

    def fork(self, parent: Sequence, children: SequenceABC[Sequence]) -> None:
        """Give each child a share of all the parent has computed, which is nothing if its blocks were taken.

        A child has the parent's account too, save that what the parent stored and computed again is not told twice.
        """
        for child in children:
            child.usage = replace(parent.usage, written_tokens=0, recomputed_tokens=0)
            child.num_accounted = parent.num_accounted
            child.num_computed_tokens = parent.num_computed_tokens
            if self._manager.holds(parent):
                self._manager.fork(parent, child, parent.num_computed_tokens)

    def resume(self, sequence: Sequence) -> None:
        """Run on at once where blocks and a seat are at hand; one whose end must be reserved is admitted anew."""
        self.undecided.discard(sequence)
        has_seat = len(self._running) < self._config.max_num_seqs and sequence.num_preemptions < MAX_PREEMPTIONS
        if has_seat and self._manager.holds(sequence):
            self._running.append(sequence)
            sequence.status = SequenceStatus.RUNNING
        else:
            self._waiting.push_front(sequence)
