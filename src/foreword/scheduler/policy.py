"""Who is preempted when the pool is full."""

from collections.abc import Callable, Iterable

from foreword.core.sequence import Sequence

MAX_PREEMPTIONS = 3
"""A sequence preempted this often comes back only once its whole length is reserved, and then runs to its end."""


def choose_victim(running: Iterable[Sequence], num_exclusive_blocks: Callable[[Sequence], int]) -> Sequence | None:
    """The running sequence that is cheapest to recompute, of those whose blocks would help.

    Cheapest means fewest blocks of its own: what it shares stays with the other holders and is found again. Among
    equals the last admitted goes, since it has waited least. None when every sequence is guaranteed or holds only
    shared blocks.
    """
    best: tuple[int, Sequence] | None = None
    for sequence in running:
        if sequence.num_preemptions >= MAX_PREEMPTIONS:
            continue
        cost = num_exclusive_blocks(sequence)
        if cost and (best is None or cost <= best[0]):
            best = (cost, sequence)
    return best[1] if best else None
