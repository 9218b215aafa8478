"""Positions, slots and blocks of a table."""

from foreword.core.types import BlockId
from foreword.kv_cache.block_table import BlockTable


def test_a_position_maps_to_the_slot_of_its_block() -> None:
    table = BlockTable(8, [5, 2])

    assert [table.slot(position) for position in (0, 7, 8, 15)] == [40, 47, 16, 23]
    assert (len(table), table.num_slots) == (2, 16)


def test_blocks_are_missing_only_past_the_end() -> None:
    table = BlockTable(8, [5, 2])

    assert [table.missing_blocks(n) for n in (0, 16, 17, 32)] == [0, 0, 1, 2]


def test_writing_touches_only_present_blocks_from_the_first_position_on() -> None:
    table = BlockTable(8, [5, 2])

    assert list(table.written_by(0, 16)) == [0, 1]
    assert list(table.written_by(7, 1)) == [0]
    assert list(table.written_by(8, 20)) == [1]
    assert list(table.written_by(16, 1)) == []


def test_ids_are_int32_in_the_buffer_protocol_and_change_in_place() -> None:
    table = BlockTable(8)
    ids = table.ids

    table.append([BlockId(3), BlockId(4)])
    previous = table.replace(0, BlockId(9))

    assert previous == 3
    assert memoryview(ids).itemsize == 4
    assert list(ids) == [9, 4]
