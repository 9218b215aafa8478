"""What a replay counts. Hits are of leading tokens: a block counts when it and every block before it were found."""

from msgspec import Struct

from foreword.replay.layout import Layout
from foreword.replay.trace import ReplayRequest


class Tally(Struct):
    """Sums over the requests of one replay."""

    requests: int = 0
    refused: int = 0  # longer than the whole pool: counted, and hit nothing
    blocks: int = 0  # whole ones
    hit_blocks: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0

    @property
    def block_hit_ratio(self) -> float:
        """Share of whole blocks that need not be computed."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def token_hit_ratio(self) -> float:
        """Share of tokens that need not be computed."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    def add(self, request: ReplayRequest, layout: Layout, hit_blocks: int, hit_symbols: int) -> None:
        """Count a request of which so many leading blocks and symbols were found."""
        self.requests += 1
        self.blocks += prompt_symbols(request, layout) // layout.index_block
        self.hit_blocks += hit_blocks
        self.tokens += request.num_tokens
        self.hit_tokens += min(request.num_tokens, hit_symbols * layout.symbol_tokens)

    def refuse(self, request: ReplayRequest, layout: Layout) -> None:
        """Count a request that can never run in the pool."""
        self.add(request, layout, 0, 0)
        self.refused += 1


def usable_symbols(request: ReplayRequest, layout: Layout) -> int:
    """Leading symbols that may be found.

    The engine always computes the last prompt token. Where the trace has tokens, that is the last symbol. Where it
    names blocks, its last token is taken to come after the last of them, as in the measurements published with such
    traces, unless the trace says how much may be found.
    """
    if request.num_usable is not None:
        return min(request.num_symbols, request.num_usable // layout.symbol_tokens)
    return request.num_symbols if layout.has_ids else max(0, request.num_symbols - 1)


def blocks_needed(request: ReplayRequest, layout: Layout) -> int:
    """Blocks the request holds while it runs, a last one that is not full among them."""
    return -(-request.num_symbols // layout.index_block)


def prompt_symbols(request: ReplayRequest, layout: Layout) -> int:
    """Leading symbols that spell the prompt; behind them may come those of a recorded answer."""
    if request.num_usable is None:
        return request.num_symbols
    return min(request.num_symbols, request.num_tokens // layout.symbol_tokens)
