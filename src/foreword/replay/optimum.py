"""The clairvoyant optimum: the most blocks any policy could hit with so many blocks of memory.

It is Belady's rule within what an engine has to do: all blocks of a running request are in the pool, one request
runs at a time, and when room is needed the cached block goes whose next use lies farthest in the future, those never
used again first.

Whoever uses a block uses all blocks before it, so next uses never come later towards the root. Taking the deepest
first among equals, the rule takes children before parents by itself; what it keeps is always whole prefixes, and so
each kept block is a hit when its use comes. All blocks weigh the same, so the question is which of the intervals
between consecutive uses of a block to keep, as many as fit in the pool beside each request between: dropping the one
that ends last is always among the best choices. No policy with these rules has more hit blocks.
"""

import heapq
from array import array
from bisect import bisect_left

import numpy as np

from foreword.replay.prefix_tree import PrefixTree, Run
from foreword.replay.tally import Tally

_NEVER = 2**62


class Uses:
    """When each run of a tree is used: requests by number, in order."""

    def __init__(self, tree: PrefixTree) -> None:
        """Cost: O(runs on the paths of all requests)."""
        runs, times = array("i"), array("i")
        for now, end in enumerate(tree.ends):
            for run in end.path():
                runs.append(run.number)
                times.append(now)
        order = np.argsort(np.array(runs, np.int32), kind="stable")
        self._times = array("i", np.array(times, np.int32)[order].tobytes())
        counts = np.bincount(np.array(runs, np.int32), minlength=len(tree.runs))
        self._starts = [0, *np.cumsum(counts).tolist()]
        self._num_blocks = tree.num_blocks

    def next_use(self, run: int, now: int, capacity: int) -> int:
        """The first use not before `now` by a request that a pool of `capacity` blocks can hold."""
        end = self._starts[run + 1]
        place = bisect_left(self._times, now, self._starts[run], end)
        while place < end and self._num_blocks[self._times[place]] > capacity:
            place += 1
        return self._times[place] if place < end else _NEVER


class Optimum:
    """Runs one trace, known whole, for one capacity."""

    def __init__(self, tree: PrefixTree, uses: Uses, capacity: int) -> None:
        self._tree = tree
        self._uses = uses
        self._capacity = capacity
        self._cached = [0] * len(tree.runs)  # of each run: leading blocks kept
        self._kept_children = [0] * len(tree.runs)  # of each run: children of which blocks are kept
        self._next_use = [-1] * len(tree.runs)  # as last queued; places in the queue that say otherwise are stale
        self._queue: list[tuple[int, int, int]] = []  # -next use, -depth, run: runs with no kept child
        self._num_cached = 0
        self._num_evicted = 0

    def run(self) -> Tally:
        """Replay every request. Cost: O(requests + runs missed · log runs)."""
        tree, layout = self._tree, self._tree.layout
        tally = Tally()
        for now, end in enumerate(tree.ends):
            tally.requests += 1
            tally.blocks += tree.prompt_blocks[now]
            tally.tokens += tree.num_tokens[now]
            if tree.num_blocks[now] > self._capacity:
                tally.refused += 1
                continue
            hits = min(self._use(now, end), tree.usable_blocks[now])
            tally.hit_blocks += hits
            tally.hit_tokens += min(tree.num_tokens[now], hits * layout.block_size)
        tally.evicted_blocks = self._num_evicted
        return tally

    def _use(self, now: int, end: Run) -> int:
        """Bring a request's blocks in; returns how many leading ones were there."""
        missing: list[Run] = []
        found = 0
        for run in end.path():
            kept = self._cached[run.number]
            if kept < run.end - run.start:
                missing.append(run)
            if kept:
                found = run.start + kept
                break
        self._make_room(self._tree.num_blocks[now] - found, now)
        self._num_cached += end.end - found
        for run in missing:
            if not self._cached[run.number] and run.parent is not None:
                self._kept_children[run.parent.number] += 1
            self._cached[run.number] = run.end - run.start
        self._offer(end, now + 1)
        return found

    def _make_room(self, count: int, now: int) -> None:
        """Evict until `count` blocks are free. The running request's own are used soonest: their turn never comes."""
        excess = self._num_cached + count - self._capacity
        while excess > 0:
            key, _, number = heapq.heappop(self._queue)
            if self._next_use[number] != -key or self._kept_children[number] or not self._cached[number]:
                continue
            run = self._tree.runs[number]
            gone = min(excess, self._cached[number])
            self._cached[number] -= gone
            self._num_cached -= gone
            self._num_evicted += gone
            excess -= gone
            if self._cached[number]:
                heapq.heappush(self._queue, (key, -run.start, number))
            elif run.parent is not None:
                self._kept_children[run.parent.number] -= 1
                self._offer(run.parent, now)

    def _offer(self, run: Run, now: int) -> None:
        """Queue a run for eviction if nothing kept follows it; its next use is not before `now`."""
        number = run.number
        if run.parent is None or self._kept_children[number]:
            return
        next_use = self._next_use[number] = self._uses.next_use(number, now, self._capacity)
        heapq.heappush(self._queue, (-next_use, -run.start, number))
