"""What each provider's rules make of the tokens that an exact prefix cache could reuse.

Sources  OpenAI, Anthropic, DeepSeek: their prompt-caching guides, read in November 2026; vLLM: blocks of 16 tokens.
         Money is in units of one uncached input token: write and read are multiples of it.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from foreword.lint.request import LoggedRequest, Part

RuleName = Literal["exact", "vllm", "openai", "anthropic", "deepseek"]
MARKERS = 4
LOOKBACK = 20
TTL_S = {"5m": 300.0, "1h": 3600.0}


class RuleSet(Struct, frozen=True):
    """Minimum and granularity of what may be read, and what reading and writing cost."""

    name: RuleName
    minimum: int
    unit: int
    read_price: float
    write_price: float
    keeps_last: bool = True  # the last token of a prompt is always computed

    def reachable(self, shared: int) -> int:
        """Tokens read, of `shared` leading ones that were sent before."""
        whole = shared // self.unit * self.unit
        return whole if whole >= self.minimum else 0


RULES: dict[RuleName, RuleSet] = {
    "exact": RuleSet("exact", 1, 1, 0.0, 1.0),
    "vllm": RuleSet("vllm", 16, 16, 0.0, 1.0),
    "openai": RuleSet("openai", 1024, 128, 0.1, 1.0),
    "anthropic": RuleSet("anthropic", 1024, 1, 0.1, 1.25),
    "deepseek": RuleSet("deepseek", 64, 64, 0.02, 1.0),
}

Loss = Literal["no_marker", "under_minimum", "ttl_passed", "lookback_exceeded", "marker_moved"]


class Reading(Struct, frozen=True):
    """What Anthropic's rules found for one request. `loss` says why less than the exact prefix, where it is less."""

    read: int
    written: int
    loss: Loss | None = None
    place: str = ""


class Breakpoints:
    """Anthropic's rules: entries are written at markers alone, found by walking back at most 20 positions.

    A request without any marker is judged as it is in its own dialect, and as if it had the automatic one in others.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[float, str]] = {}  # node of a leading run of parts -> when it expires, lifetime

    def run(self, request: LoggedRequest, nodes: Sequence[int], ends: Sequence[int], shared: int) -> Reading:
        """Read and write one request; `ends` are tokens up to the end of each part, `shared` the exact prefix."""
        marks = _markers(request)
        now = request.time_s
        positions = _positions(request.parts)
        minimum = RULES["anthropic"].minimum
        found, loss = self._read(marks, nodes, positions, now)
        read = 0 if found is None or ends[found] < minimum else ends[found]
        last = max(marks, default=None)
        written = max(0, ends[last] - read) if last is not None and ends[last] >= minimum else 0
        if found is not None:
            self._write(nodes[found], self._entries[nodes[found]][1], now)  # reading refreshes
        for index, ttl in marks.items():
            if ends[index] >= minimum:
                self._write(nodes[index], ttl, now)
        reachable = max((end for end in ends if end <= shared), default=0)
        if reachable - read < RULES["vllm"].unit or request.dialect != "messages":
            return Reading(read, written)
        if not marks:
            loss = "no_marker"
        elif reachable < minimum:
            loss = "under_minimum"
        place = request.parts[last if last is not None else -1].place
        return Reading(read, written, loss or "marker_moved", place)

    def _read(
        self, marks: dict[int, str], nodes: Sequence[int], positions: Sequence[int], now: float | None
    ) -> tuple[int | None, Loss | None]:
        loss: Loss | None = None
        for mark in sorted(marks, reverse=True):
            for index in range(mark, -1, -1):
                entry = self._entries.get(nodes[index])
                if entry is None:
                    continue
                if positions[mark] - positions[index] >= LOOKBACK:
                    loss = loss or "lookback_exceeded"
                elif now is not None and entry[0] < now:
                    loss = loss or "ttl_passed"
                else:
                    return index, loss
        return None, loss

    def _write(self, node: int, ttl: str, now: float | None) -> None:
        self._entries[node] = (float("inf") if now is None else now + TTL_S[ttl], ttl)


def _markers(request: LoggedRequest) -> dict[int, str]:
    """Parts that carry a marker, with its lifetime; the latest four."""
    marks = {index: part.marker for index, part in enumerate(request.parts) if part.marker is not None}
    automatic = request.automatic or ("5m" if request.dialect != "messages" else None)
    if automatic is not None and request.parts:
        marks.setdefault(len(request.parts) - 1, automatic)
    return dict(sorted(marks.items())[-MARKERS:])


def _positions(parts: Sequence[Part]) -> list[int]:
    """The lookback's count: a run of calls, or of their results, is one position."""
    positions: list[int] = []
    for index, part in enumerate(parts):
        same_run = index > 0 and part.kind in ("tool_use", "tool_result") and parts[index - 1].kind == part.kind
        positions.append(positions[-1] + (not same_run) if positions else 0)
    return positions
