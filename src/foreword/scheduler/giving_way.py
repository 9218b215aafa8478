"""Who gives way when the pool is full.

In this order, one at a time, until there is room: those that hold blocks without running, then the running sequence
that is cheapest to compute again, then the oldest pin.
"""

from foreword.core.sequence import Sequence, SequenceStatus
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.accounting import SchedulerCounters
from foreword.scheduler.policy import choose_victim
from foreword.scheduler.queues import SequenceQueue
from foreword.scheduler.reservations import Reservations
from foreword.scheduler.starting import take_blocks
from foreword.scheduler.step_plan import StepPlan


class GivingWay:
    """Takes blocks back from sequences, which then wait at the head of the queue and compute again what they lost."""

    def __init__(
        self,
        manager: KVCacheManager,
        waiting: SequenceQueue,
        running: SequenceQueue,
        undecided: SequenceQueue,
        reservations: Reservations,
        counters: SchedulerCounters,
    ) -> None:
        self._manager, self._reservations, self._counters = manager, reservations, counters
        self._waiting, self._running, self._undecided = waiting, running, undecided

    def make_room(self, plan: StepPlan) -> bool:
        """Let one give way, for a running sequence; False when nobody can.

        Then sources of this step's copies hold the room; they let go before the next step.
        """
        if self._strip_waiting():
            return True
        victim = choose_victim(self._running, self._manager.num_exclusive_blocks, any_helps=not len(plan))
        if victim is None:
            return self._manager.drop_oldest_pin()
        victim.num_preemptions += 1
        self._counters.num_preemptions += 1
        plan.preempt(victim)
        self.send_back(victim)
        return True

    def make_room_for_one(self) -> bool:
        """Nothing runs and the first in line has no room: take from those that only hold; False when none does."""
        return self._strip_waiting() or self._manager.drop_oldest_pin()

    def send_back(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks and let it wait at the head of the queue."""
        take_blocks([sequence], self._manager)
        sequence.status = SequenceStatus.WAITING
        self._running.discard(sequence)
        self._reservations.stop(sequence)
        self._waiting.push_front(sequence)

    def _strip_waiting(self) -> bool:
        """Take the blocks of those that only hold them; False when none does."""
        return take_blocks((*self._waiting, *self._undecided), self._manager)
