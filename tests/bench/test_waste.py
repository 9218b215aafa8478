import pytest

from foreword.bench.length_mix import evenly_sampled, scaled, truncated
from foreword.bench.waste import run_lengths


def test_slots_are_counted_step_by_step() -> None:
    # One request of 20 prompt tokens and 3 generated ones, blocks of 16: steps hold 20, 21 and 22 tokens in 2 blocks.
    slots = run_lengths([(20, 3)], block_size=16, context=64)

    assert (slots.used, slots.paged, slots.contiguous) == (20 + 21 + 22, 3 * 32, 3 * 64)
    assert slots.waste_ratio == 1 - 63 / 96
    assert slots.contiguous_waste_ratio == 1 - 63 / 192


def test_a_prompt_over_the_budget_is_counted_as_it_grows() -> None:
    slots = run_lengths([(600, 1)], block_size=16, context=1024)

    assert (slots.used, slots.paged) == (512 + 600, 512 + 608)


def test_requests_beyond_sixteen_wait_their_turn() -> None:
    slots = run_lengths([(16, 2)] * 40, block_size=16, context=64)

    assert slots.used == 40 * (16 + 17)


def test_scaling_keeps_every_part_and_fits_the_longest() -> None:
    assert scaled([(9000, 1000), (10, 1)], 10_000, 2000) == [(1800, 200), (2, 1)]


def test_truncation_fits_every_request() -> None:
    assert truncated([(5000, 3000), (100, 50), (2000, 100)], 2048) == [(1024, 1024), (100, 50), (1948, 100)]


@pytest.mark.parametrize("count", [1, 7, 100, 1000])
def test_a_sample_is_even_and_no_longer_than_asked(count: int) -> None:
    lengths = [(n, 1) for n in range(1, 101)]

    sample = evenly_sampled(lengths, count)

    assert len(sample) == min(count, 100)
    assert sample == sorted(sample)
