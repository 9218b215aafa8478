"""From a step's decision to flat arrays. The only place that builds `slot_mapping`."""

from dataclasses import dataclass

import numpy as np

from foreword.core.outputs import SchedulerOutput
from foreword.core.types import ceil_div
from foreword.ops.backend import I32, AttentionBatch


@dataclass(frozen=True, slots=True, eq=False)
class InputBatch:
    """Arrays of one step: `token_ids [T]` and where their queries and keys lie."""

    token_ids: I32
    attention: AttentionBatch


def build_input_batch(output: SchedulerOutput, block_size: int) -> InputBatch:
    """Flatten the scheduled sequences, in order.

    Cost     a few NumPy calls a sequence; nothing in Python grows with the number of tokens or blocks.
    """
    sequences = output.sequences
    lengths = np.array([len(s.token_ids) for s in sequences], np.int32)
    starts = np.array([s.start for s in sequences], np.int32)
    query_start_loc = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(lengths, out=query_start_loc[1:])
    num_tokens = int(query_start_loc[-1])
    context_lens = starts + lengths

    token_ids = np.empty(num_tokens, np.int32)
    tables = np.zeros((len(sequences), ceil_div(int(context_lens.max()), block_size)), np.int32)
    for row, s in enumerate(sequences):
        first, last = query_start_loc[row], query_start_loc[row + 1]
        token_ids[first:last] = s.token_ids
        blocks = np.frombuffer(s.block_table, np.int32)[: tables.shape[1]]
        tables[row, : len(blocks)] = blocks

    row_of_token = np.repeat(np.arange(len(sequences)), lengths)
    positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - query_start_loc[:-1], lengths)
    slots = tables[row_of_token, positions // block_size] * block_size + positions % block_size
    return InputBatch(
        token_ids=token_ids,
        attention=AttentionBatch(
            positions=positions.astype(np.int32),
            slot_mapping=slots.astype(np.int32),
            block_tables=tables,
            query_start_loc=query_start_loc,
            context_lens=context_lens.astype(np.int32),
        ),
    )
