"""How much of a trace's text one block of the index stands for.

Traces come in two kinds. Some name blocks: equal ids at equal depth mean equal text of so many tokens. Others have the
tokens themselves, or text to make them from. An index knows tokens only, so a block id is spelt as a run of symbols:

    id 7 of 512 tokens as one block       7 7 7 7 7 7 7 7       a symbol stands for 64 tokens
    id 7 of 512 tokens as two of 256      7 x 16                a symbol stands for 32 tokens
    ids 3, 4 of 64 tokens as one of 128   3 3 3 3 4 4 4 4       a symbol stands for 16 tokens

Runs that differ part at their first symbol, so nothing is ever found inside a trace's block.
"""

from msgspec import Struct

from foreword.core.errors import InvalidRequestError

SYMBOLS_A_BLOCK = 8  # the smallest block an index has
TOKEN_BLOCK = 16  # tokens a block where the trace has tokens and nobody chose


class Layout(Struct, frozen=True):
    """Sizes that hold for every request of a replay.

    `block_size` is in tokens, as capacities are counted; the index is made with blocks of `index_block` symbols, and
    a symbol stands for `symbol_tokens` tokens.
    """

    block_size: int
    index_block: int
    symbol_tokens: int
    symbols_an_id: int  # 0 where the trace has tokens

    @property
    def has_ids(self) -> bool:
        """True where the trace names blocks and has no tokens."""
        return self.symbols_an_id > 0

    @property
    def is_uniform(self) -> bool:
        """True when all symbols of a block are the same, so that one of them tells blocks apart."""
        return self.has_ids and self.symbols_an_id % self.index_block == 0


def layout_for(trace_block: int | None, block_size: int | None) -> Layout:
    """The layout for a trace whose ids stand for `trace_block` tokens, or that has tokens (None).

    Raises:
        InvalidRequestError: blocks of that size cannot be made out of the trace's.
    """
    if trace_block is None:
        size = TOKEN_BLOCK if block_size is None else block_size
        return Layout(size, size, 1, 0)  # the index itself says which sizes it takes
    size = trace_block if block_size is None else block_size
    symbols, rest = divmod(SYMBOLS_A_BLOCK * trace_block, max(size, 1))
    if size < 1 or size % SYMBOLS_A_BLOCK or rest:
        expected = f"a multiple of 8 that divides {SYMBOLS_A_BLOCK * trace_block} (8 of the trace's blocks)"
        raise InvalidRequestError("block_size", expected, size)
    return Layout(size, SYMBOLS_A_BLOCK, size // SYMBOLS_A_BLOCK, symbols)
