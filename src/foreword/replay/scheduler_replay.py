"""The whole way round: the real scheduler and manager, one request at a time, everything but a model.

Slower than `index_replay` and stricter: it also holds what the engine holds beside a prompt's whole blocks. Where a
trace names blocks, one more token, different in each request, is put behind them, because the engine always computes
the last token of a prompt; it takes a block of its own while the request runs.
"""

from array import array

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import CapacityError, InvariantError
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Request, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.kv_cache.manager import KVCacheManager
from foreword.replay.formats import MAX_ID
from foreword.replay.layout import Layout
from foreword.replay.tally import Tally, usable_symbols
from foreword.replay.trace import ReplayRequest
from foreword.scheduler.scheduler import Scheduler

_ONE_TOKEN = SamplingParams(max_tokens=1)
_LONGEST = 2**31 - 1


class SchedulerReplay:
    """Runs requests one after the other; `tally` holds the counts so far."""

    def __init__(self, config: CacheConfig, layout: Layout) -> None:
        self.tally = Tally()
        self.manager = KVCacheManager(config)
        limits = SchedulerConfig(max_num_seqs=1, token_budget=_LONGEST, max_model_len=_LONGEST, watermark=0.0)
        self._scheduler = Scheduler(limits, self.manager)
        self._layout = layout
        self._finds_whole_blocks = config.prefix_cache == "hash"
        self._num_requests = 0
        self._now = 0

    def run(self, request: ReplayRequest) -> None:
        """Add the request, and step until it has ended."""
        layout = self._layout
        made = self._made(request)
        try:
            self._scheduler.add(made)
        except CapacityError:
            self.tally.refuse(request, layout)
            return
        while self._scheduler.has_unfinished:
            self._now += 1
            output = self._scheduler.schedule(self._now)
            if output is None:
                raise InvariantError("a request waits alone and cannot run")
            self._scheduler.update(output, {})
        usable = usable_symbols(request, layout)
        if self._finds_whole_blocks:
            usable -= usable % layout.index_block
        found = min(made.sequences[0].usage.cached_tokens, usable)  # a recorded answer behind it may be found too
        self.tally.add(request, layout, found // layout.index_block, found)
        self.tally.evicted_blocks = self.manager.stats.evicted_blocks

    def _made(self, request: ReplayRequest) -> Request:
        self._num_requests += 1
        tokens = [TokenId(symbol) for symbol in array("i", request.packed)]
        if self._layout.has_ids:
            tokens.append(TokenId(MAX_ID + self._num_requests))
        request_id = RequestId(str(self._num_requests))
        sequence_id = SequenceId(self._num_requests)
        sequence = Sequence(sequence_id, request_id, 0, tokens, len(tokens), _ONE_TOKEN, seed=0)
        return Request(
            request_id,
            tuple(tokens),
            _ONE_TOKEN,
            namespace=request.namespace,
            prefill_only=True,
            sequences=[sequence],
        )
