import numpy as np
import pytest
from tests.factories import tiny_config

from foreword.core.config import RopeScaling
from foreword.models.rope import RotaryTable, inverse_frequencies


def test_the_table_holds_cosines_then_sines_of_position_times_frequency() -> None:
    config = tiny_config()
    frequencies, _ = inverse_frequencies(config)

    table = RotaryTable(config).first(512)

    angles = (np.arange(512, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    assert table.shape == (512, 16)
    assert np.array_equal(table[:, :8], np.cos(angles).astype(np.float32))
    assert np.array_equal(table[:, 8:], np.sin(angles).astype(np.float32))


def test_growing_the_table_changes_no_bit() -> None:
    config = tiny_config(max_position=100_000)
    grown = RotaryTable(config)
    for wanted in (1, 2, 5000, 4000, 5001, 20_000):
        table = grown.first(wanted)
        assert len(table) >= wanted

    assert table[:20_000].tobytes() == RotaryTable(config).first(20_000)[:20_000].tobytes()


def test_the_table_stops_at_the_model_s_context() -> None:
    table = RotaryTable(tiny_config(max_position=300))

    assert len(table.first(1)) == 300
    assert table.num_bytes == 300 * 16 * 4


def test_the_attention_factor_scales_cosines_and_sines() -> None:
    plain = RopeScaling(kind="yarn", factor=4.0, original_max_position=64, attention_factor=1.0)
    scaled = RopeScaling(kind="yarn", factor=4.0, original_max_position=64, attention_factor=2.0)

    tables = [RotaryTable(tiny_config(rope_scaling=scaling)).first(10) for scaling in (plain, scaled)]

    assert np.array_equal(2 * tables[0], tables[1])


def test_yarn_s_attention_factor_follows_the_paper_or_the_two_mscales() -> None:
    plain = RopeScaling(kind="yarn", factor=4.0, original_max_position=64)
    two = RopeScaling(kind="yarn", factor=4.0, original_max_position=64, mscale=1.0, mscale_all_dim=0.5)
    shrunk = RopeScaling(kind="yarn", factor=0.5, original_max_position=64)
    factors = [inverse_frequencies(tiny_config(rope_scaling=scaling))[1] for scaling in (plain, two, shrunk)]

    assert factors[0] == pytest.approx(1.138629, abs=1e-6)
    assert factors[1] == pytest.approx(1.138629 / 1.069315, abs=1e-6)
    assert factors[2] == 1.0


@pytest.mark.parametrize("divisor", [0.0, np.nan])
def test_divisors_that_give_no_rotation_are_refused(divisor: float) -> None:
    with pytest.raises(ValueError, match="no finite rotation"):
        RotaryTable(tiny_config(), np.full(8, divisor, np.float32))
