"""From a step's decision to flat arrays. The only place that builds `slot_mapping`."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from foreword.core.outputs import ScheduledSequence, SchedulerOutput
from foreword.core.types import ceil_div
from foreword.ops.backend import I32, AttentionBatch


class InputBatch(Struct, frozen=True, eq=False):
    """Arrays of one step: `token_ids [T]` and where their queries and keys lie."""

    token_ids: I32
    attention: AttentionBatch


def build_input_batch(output: SchedulerOutput, block_size: int) -> InputBatch:
    """Flatten the scheduled sequences, in order.

    Cost     a few NumPy calls a sequence; nothing in Python grows with the number of tokens or blocks.
    """
    sequences = output.sequences
    if all(len(s.token_ids) == 1 for s in sequences):
        return _one_each(sequences, block_size)
    lengths = np.array([len(s.token_ids) for s in sequences], np.int32)
    starts = np.array([s.start for s in sequences], np.int32)
    query_start_loc = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(lengths, out=query_start_loc[1:])
    context_lens = starts + lengths
    tables = _tables(sequences, ceil_div(int(context_lens.max()), block_size))
    token_ids, positions, slots = _runs(sequences, starts, lengths, query_start_loc, tables, block_size)
    return InputBatch(token_ids, AttentionBatch(positions, slots, tables, query_start_loc, context_lens))


def _tables(sequences: Sequence[ScheduledSequence], width: int) -> I32:
    tables = np.zeros((len(sequences), width), np.int32)
    for row, s in enumerate(sequences):
        blocks = np.frombuffer(s.block_table, np.int32)[:width]
        tables[row, : len(blocks)] = blocks
    return tables


def _one_each(sequences: Sequence[ScheduledSequence], block_size: int) -> InputBatch:
    """A step that only decodes: for one token each, plain arithmetic and a single array are the quicker."""
    count, starts = len(sequences), [s.start for s in sequences]
    numbers: list[int] = [s.token_ids[0] for s in sequences]
    numbers += starts
    numbers += [s.block_table[s.start // block_size] * block_size + s.start % block_size for s in sequences]
    numbers += [start + 1 for start in starts]
    numbers += range(count + 1)
    packed = np.array(numbers, np.int32)
    token_ids, positions, slots, context_lens = (packed[i * count : (i + 1) * count] for i in range(4))
    tables = _tables(sequences, ceil_div(max(starts) + 1, block_size))
    return InputBatch(token_ids, AttentionBatch(positions, slots, tables, packed[4 * count :], context_lens))


def _runs(
    sequences: Sequence[ScheduledSequence],
    starts: I32,
    lengths: I32,
    query_start_loc: I32,
    tables: I32,
    block_size: int,
) -> tuple[I32, I32, I32]:
    """Ids, positions and slots of runs of any length."""
    num_tokens = int(query_start_loc[-1])
    token_ids = np.empty(num_tokens, np.int32)
    for row, s in enumerate(sequences):
        token_ids[query_start_loc[row] : query_start_loc[row + 1]] = s.token_ids
    row_of_token = np.repeat(np.arange(len(sequences)), lengths)
    positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - query_start_loc[:-1], lengths)
    slots = tables[row_of_token, positions // block_size] * block_size + positions % block_size
    return token_ids, positions.astype(np.int32), slots.astype(np.int32)
