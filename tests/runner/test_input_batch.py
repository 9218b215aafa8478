"""Flat arrays of a step against a token-by-token construction."""

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.outputs import ScheduledSequence, SchedulerOutput
from foreword.core.types import SequenceId, TokenId
from foreword.runner.input_batch import build_input_batch


@st.composite
def scheduled_steps(draw: st.DrawFn) -> tuple[SchedulerOutput, int]:
    block_size = draw(st.sampled_from([8, 16, 64]))
    sequences, next_block = [], 0
    longest = draw(st.sampled_from([1, 40]))  # 1: a step that only decodes
    for number in range(draw(st.integers(1, 5))):
        start, length = draw(st.integers(0, 70)), draw(st.integers(1, longest))
        num_blocks = -(-(start + length) // block_size) + draw(st.integers(0, 2))
        blocks = list(range(next_block, next_block + num_blocks))[::-1]
        next_block += num_blocks
        sequences.append(
            ScheduledSequence(
                sequence_id=SequenceId(number),
                token_ids=[TokenId(t) for t in draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))],
                start=start,
                block_table=array("i", blocks),
                num_logits=1,
                samples=True,
            )
        )
    return SchedulerOutput(step=0, sequences=tuple(sequences)), block_size


@given(scheduled_steps())
def test_arrays_equal_a_token_by_token_construction(step: tuple[SchedulerOutput, int]) -> None:
    output, block_size = step

    batch = build_input_batch(output, block_size)

    tokens, positions, slots, starts = [], [], [], [0]
    for s in output.sequences:
        for offset, token in enumerate(s.token_ids):
            position = s.start + offset
            tokens.append(token)
            positions.append(position)
            slots.append(s.block_table[position // block_size] * block_size + position % block_size)
        starts.append(len(tokens))
    assert batch.token_ids.tolist() == tokens
    assert batch.attention.positions.tolist() == positions
    assert batch.attention.slot_mapping.tolist() == slots
    assert batch.attention.query_start_loc.tolist() == starts
    assert batch.attention.context_lens.tolist() == [s.start + len(s.token_ids) for s in output.sequences]
    for field in ("positions", "slot_mapping", "block_tables", "query_start_loc", "context_lens"):
        assert getattr(batch.attention, field).dtype == np.int32


@given(scheduled_steps())
def test_tables_cover_every_position_and_hold_only_the_sequences_blocks(step: tuple[SchedulerOutput, int]) -> None:
    output, block_size = step

    tables = build_input_batch(output, block_size).attention.block_tables

    for s, row in zip(output.sequences, tables, strict=True):
        needed = -(-(s.start + len(s.token_ids)) // block_size)
        assert row[:needed].tolist() == list(s.block_table[:needed])
