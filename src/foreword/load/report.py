"""What a load has shown.

TTFT    from when a request was due (closed loop: sent) to the first piece of its answer
ITL     between two pieces of one answer; all gaps of all answers together
TPOT    (end of the last choice - first piece) / (output tokens - 1), one value a request
E2E     from when a request was due to the end of its answer
goodput complete answers within the objectives, a second

A rate is taken over the time from the first request to the last answer; *while asked* over the time in which requests
were sent: what came within it. An open loop that asks too much ends with those who waited longest, when little runs.

Percentiles interpolate linearly between the two nearest values. Only complete answers are in the times; what failed is
counted by kind. A request that a client of an open loop sent late has waited all the same: its times begin when it was
due.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec import Struct

from foreword.load.call import Record

PERCENTILES = (50, 90, 95, 99)


class Objectives(Struct, frozen=True, kw_only=True):
    """What an answer has to keep to count for goodput; None asks nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def are_met(self, record: Record) -> bool:
        """Whether an answer is complete and in time."""
        if record.outcome != "ok":
            return False
        ttft_s, tpot_s = record.ttft_s, record.tpot_s
        in_time = self.ttft_s is None or (ttft_s is not None and ttft_s <= self.ttft_s)
        return in_time and (self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s)


def report(
    records: Sequence[Record], objectives: Objectives | None = None, asked_s: float | None = None
) -> dict[str, object]:
    """Figures by name; a name ends in its unit. Hit rates are as the server's own usage says.

    `asked_s` is for how long requests were sent, where that is known: rates count all that was answered until the last
    answer came, and once more what came within that time.
    """
    wanted = objectives or Objectives()
    complete = [record for record in records if record.outcome == "ok"]
    outcomes = Counter(record.outcome for record in records)
    begun_s = min((r.due_s for r in records), default=0.0)
    wall_s = max((r.end_s for r in records), default=0.0) - begun_s
    asked_s = wall_s if asked_s is None else min(asked_s, wall_s)
    while_asked = sum(r.end_s - begun_s <= asked_s for r in complete)
    prompt = sum(record.prompt_tokens for record in complete)
    cached = sum(record.cached_tokens for record in complete)
    generated = sum(record.completion_tokens for record in complete)
    return {
        "wall_s": wall_s,
        "requests": len(records),
        "complete": len(complete),
        "left": outcomes["left"],
        "garbage_refused": outcomes["refused"],
        "errors": {kind: outcomes[kind] for kind in sorted(outcomes) if kind not in ("ok", "left", "refused")},
        "requests_per_second": _rate(len(complete), wall_s),
        "requests_per_second_while_asked": _rate(while_asked, asked_s),
        "goodput_per_second": _rate(sum(map(wanted.are_met, records)), wall_s),
        "output_tok_s": _rate(generated, wall_s),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": generated,
        "hit_ratio": cached / prompt if prompt else 0.0,
        "ttft_s": spread(r.ttft_s for r in complete),
        "itl_s": spread(chain.from_iterable(r.gaps_s for r in complete)),
        "tpot_s": spread(r.tpot_s for r in complete),
        "e2e_s": spread(r.e2e_s for r in complete),
    }


def spread(values: Iterable[float | None]) -> Mapping[str, float]:
    """Mean, percentiles and maximum; empty without a value."""
    found = np.array([value for value in values if value is not None], dtype=np.float64)
    if not found.size:
        return {}
    at = np.percentile(found, PERCENTILES)
    named = {f"p{share}": float(value) for share, value in zip(PERCENTILES, at, strict=True)}
    return {"mean": float(found.mean()), **named, "max": float(found.max())}


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
