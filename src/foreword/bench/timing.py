"""When the tokens of a stream came."""

import time
from collections.abc import Iterable, Iterator

from foreword.llm import RequestOutput, TextDelta


class StreamClock:
    """Watches one stream. Create it right before the stream is asked for, so that tokenising counts."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.num_tokens = 0
        self.output: RequestOutput | None = None
        self._first: float | None = None
        self._last = self.started
        self._started_continuations: set[int] = set()

    def watch(self, deltas: Iterable[TextDelta]) -> Iterator[TextDelta]:
        """Pass the deltas on, noting when each came."""
        for delta in deltas:
            self.output = delta.output
            if delta.token_ids:
                self._last = time.perf_counter()
                self.num_tokens += len(delta.token_ids)
                if self._first is None:
                    self._first = self._last
                self._started_continuations.add(delta.index)
            yield delta

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None before it came."""
        return None if self._first is None else self._first - self.started

    @property
    def wall_s(self) -> float:
        """Seconds to the last token so far."""
        return self._last - self.started

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens a second after each continuation's first; None before the second token came."""
        later = self.num_tokens - len(self._started_continuations)
        if self._first is None or later < 1 or self._last <= self._first:
            return None
        return later / (self._last - self._first)
