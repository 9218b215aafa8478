"""Who is admitted first when several wait, and who is preempted when the pool is full."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable

from foreword.core.sequence import Sequence
from foreword.core.types import SequenceId
from foreword.scheduler.queues import SequenceQueue

MAX_PREEMPTIONS = 3
"""A sequence preempted this often comes back only once its whole length is reserved, and then runs to its end."""

MAX_HIT = 2**62
"""More than any hit."""


def choose_victim(
    running: Iterable[Sequence], num_exclusive_blocks: Callable[[Sequence], int], *, any_helps: bool = False
) -> Sequence | None:
    """The running sequence that is cheapest to recompute, of those whose blocks would help.

    Cheapest means fewest blocks of its own: what it shares stays with the other holders and is found again. Among
    equals the last admitted goes, since it has waited least. None when every sequence is guaranteed or holds only
    shared blocks; with `any_helps` one of the latter will do, since others then have those blocks to themselves.
    """
    best: tuple[int, Sequence] | None = None
    sharer: Sequence | None = None
    for sequence in running:
        if sequence.num_preemptions >= MAX_PREEMPTIONS:
            continue
        cost = num_exclusive_blocks(sequence)
        if cost and (best is None or cost <= best[0]):
            best = (cost, sequence)
        elif not cost and any_helps:
            sharer = sequence
    return best[1] if best else sharer


def arrange_fairly(waiting: SequenceQueue, running: Iterable[Sequence], tenant_of: Callable[[Sequence], bytes]) -> None:
    """Put tenants in turn: whoever runs least goes first, each tenant's own in the order they have.

    A sequence's turn is the number of its tenant's sequences that run or wait before it, so a tenant that sends many
    requests puts off its own and not those of others. Sequences that ran before keep their places at the head: they
    hold what others wait for. Only counts matter, so the order tells nothing of what anybody has stored.
    """
    if len(set(map(tenant_of, waiting))) < 2:
        return
    turns = Counter(map(tenant_of, running))
    ranked: list[tuple[int, int, Sequence]] = []
    for place, sequence in enumerate(waiting):
        if sequence.num_preemptions or sequence.num_output_tokens:
            ranked.append((-1, place, sequence))
            continue
        ranked.append((turns[tenant_of(sequence)], place, sequence))
        turns[tenant_of(sequence)] += 1
    waiting.reorder(sequence for _, _, sequence in sorted(ranked, key=lambda entry: entry[:2]))


class LongestHitFirst:
    """Among waiting sequences of one tenant, those with the longest stored prefix first, while it is still there.

    Blind across tenants: the places in the queue that belong to a tenant stay its own, so the order in which one
    tenant's requests are admitted tells nothing of what another's have stored. Nobody starves: a sequence overtaken
    `max_overtaken` times goes before all that have not been. Sequences that ran before keep their places.
    """

    def __init__(self, window: int = 32, max_overtaken: int = 8) -> None:
        self._window = window
        self._max_overtaken = max_overtaken
        self._overtaken: dict[SequenceId, int] = {}

    def arrange(
        self, waiting: SequenceQueue, tenant_of: Callable[[Sequence], bytes], hit_len: Callable[[Sequence], int]
    ) -> None:
        """Put the queue in the order of admission. Cost: one match for each of the first `window` new sequences."""
        order = list(waiting)
        places: dict[bytes, list[int]] = {}
        for place, sequence in enumerate(order[: self._window]):
            if not sequence.num_preemptions and not sequence.num_output_tokens:
                places.setdefault(tenant_of(sequence), []).append(place)
        changed = False
        for own in places.values():
            if len(own) > 1:
                members = sorted((order[place] for place in own), key=lambda s: self._rank(s, hit_len))
                for place, sequence in zip(own, members, strict=True):
                    changed = changed or order[place] is not sequence
                    order[place] = sequence
        if changed:  # for good: whoever is overtaken moves to the next place of its tenant, not of another's
            waiting.reorder(order)

    def admitted(self, sequence: Sequence, waiting: SequenceQueue, tenant_of: Callable[[Sequence], bytes]) -> None:
        """`sequence` is about to leave the queue: those of its tenant that came before it were overtaken."""
        self._overtaken.pop(sequence.sequence_id, None)
        tenant = tenant_of(sequence)
        for other in itertools.islice(waiting, self._window):
            if other.sequence_id < sequence.sequence_id and tenant_of(other) == tenant:
                self._overtaken[other.sequence_id] = self._overtaken.get(other.sequence_id, 0) + 1

    def forget(self, sequence: Sequence) -> None:
        """`sequence` has ended."""
        self._overtaken.pop(sequence.sequence_id, None)

    def _rank(self, sequence: Sequence, hit_len: Callable[[Sequence], int]) -> tuple[int, SequenceId]:
        overdue = self._overtaken.get(sequence.sequence_id, 0) >= self._max_overtaken
        return (-MAX_HIT if overdue else -hit_len(sequence), sequence.sequence_id)
