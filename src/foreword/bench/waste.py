"""How much reserved KV memory holds nothing: paging against contiguous reservation.

The real scheduler and block pool run a published mix of request lengths, with made-up tokens and no model. In every
step each running sequence reserves slots (its blocks) and uses some of them (tokens whose K and V are present):

    waste = (reserved - used) / reserved, summed over sequences and steps

Contiguous reservation, what an engine without paging does, gives each running sequence `max_model_len` slots at once.
Both are counted in the same run.
"""

from collections.abc import Iterator

from msgspec import Struct

from foreword.bench.length_mix import Lengths, evenly_sampled, scaled, truncated
from foreword.bench.result import Metrics
from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import InvariantError
from foreword.core.outputs import SampledToken
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Request, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.kv_cache.manager import KVCacheManager
from foreword.scheduler.scheduler import Scheduler

CONTEXT = 2048
MOST_REQUESTS = 1000  # of a longer trace an even sample is run
_AT_ONCE = 16
_TOKEN = TokenId(7)


class SlotSteps(Struct, frozen=True):
    """Slots summed over sequences and steps."""

    used: int
    paged: int
    contiguous: int

    @property
    def waste_ratio(self) -> float:
        """Share of paged slots that held nothing."""
        return 1 - self.used / self.paged

    @property
    def contiguous_waste_ratio(self) -> float:
        """Share of contiguously reserved slots that held nothing."""
        return 1 - self.used / self.contiguous


def waste(lengths: Lengths, longest: int, *, block_size: int) -> Metrics:
    """Waste on a mix of lengths, brought to a context of 2,048 tokens in two ways.

    Scaled: all lengths times one factor, so that the longest request just fits. Truncated: as a server of that context
    would see the requests. `longest` is the longest request of the whole mix, which a sample may lack.
    """
    sample = evenly_sampled(sorted(lengths, key=sum), MOST_REQUESTS)
    by_scale = run_lengths(scaled(sample, longest, CONTEXT), block_size=block_size, context=CONTEXT)
    by_cut = run_lengths(truncated(sample, CONTEXT), block_size=block_size, context=CONTEXT)
    return {
        "waste_ratio": by_scale.waste_ratio,
        "contiguous_waste_ratio": by_scale.contiguous_waste_ratio,
        "contiguous_over_paged": by_scale.contiguous / by_scale.paged,
        "truncated_waste_ratio": by_cut.waste_ratio,
        "truncated_contiguous_waste_ratio": by_cut.contiguous_waste_ratio,
        "truncated_contiguous_over_paged": by_cut.contiguous / by_cut.paged,
        "block_size": block_size,
        "requests": len(sample),
    }


def run_lengths(lengths: Lengths, *, block_size: int, context: int) -> SlotSteps:
    """Run requests of given prompt and answer lengths through scheduler and pool, 16 at a time."""
    cache = CacheConfig(num_blocks=_AT_ONCE * (context // block_size + 1), block_size=block_size)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=_AT_ONCE, max_model_len=context + 1), KVCacheManager(cache))
    requests = _requests(lengths)
    used = paged = contiguous = step = 0
    while True:
        while scheduler.num_waiting < _AT_ONCE and (request := next(requests, None)) is not None:
            scheduler.add(request)
        if not scheduler.has_unfinished:
            return SlotSteps(used, paged, contiguous)
        step += 1
        output = scheduler.schedule(step)
        if output is None:
            raise InvariantError("requests wait, but none of them can compute anything")
        for s in output.sequences:
            used += s.start + len(s.token_ids)
            paged += len(s.block_table) * block_size
            contiguous += context
        scheduler.update(output, {s.sequence_id: (SampledToken(_TOKEN),) for s in output.sequences if s.samples})


def _requests(lengths: Lengths) -> Iterator[Request]:
    for number, (prompt_len, num_generated) in enumerate(lengths):
        request_id = RequestId(str(number))
        params = SamplingParams(max_tokens=num_generated, ignore_eos=True)
        prompt = (_TOKEN,) * prompt_len
        sequence = Sequence(SequenceId(number), request_id, 0, list(prompt), prompt_len, params, seed=0)
        yield Request(request_id, prompt, params, sequences=[sequence])
