"""The rotary table: cosines and sines of every position, as `transformers` computes them.

Angles are f32 inverse frequencies times f32 positions, since trained models have seen just these roundings. Cosine and
sine are taken in double and rounded once, so that the table is the same on every machine.
"""

import math

import numpy as np

from foreword.core.config import ModelConfig, RopeScaling
from foreword.ops.backend import F32

_ONE = np.float32(1)
_FIRST_POSITIONS = 2048


class RotaryTable:
    """Rotations of positions from 0, computed as far as they have been asked for.

    `frequency_divisors [D/2]` are what a GGUF file's `rope_freqs.weight` divides each frequency by.

    Raises:
        ValueError: the config or the divisors give an angle that is no finite number.
    """

    def __init__(self, config: ModelConfig, frequency_divisors: F32 | None = None) -> None:
        try:
            with np.errstate(all="ignore"):
                frequencies, self._attention_factor = inverse_frequencies(config)
                if frequency_divisors is not None:
                    frequencies = frequencies / frequency_divisors
                largest = np.abs(frequencies).max() * np.float32(config.max_position) * self._attention_factor
        except ArithmeticError:
            largest = np.float32(np.inf)
        if not np.isfinite(largest):
            raise ValueError(f"base {config.rope_theta} and its scaling give no finite rotation")
        self._frequencies = frequencies
        self._max_position = config.max_position
        self._table: F32 = np.empty((0, config.head_dim), np.float32)

    @property
    def num_bytes(self) -> int:
        """Memory of what has been computed."""
        return self._table.nbytes

    def first(self, num_positions: int) -> F32:
        """The table of at least `num_positions` positions.

        Shapes   f32 `[positions, D]`: D/2 cosines, then D/2 sines, both times the attention factor (1 but for YaRN).
        Cost     O(1), but doubling the table when it is too short.
        """
        present = len(self._table)
        if num_positions > present:
            wanted = max(num_positions, min(max(_FIRST_POSITIONS, 2 * present), self._max_position))
            self._table = np.concatenate([self._table, self._rows(present, wanted)])
        return self._table

    def _rows(self, start: int, stop: int) -> F32:
        angles = np.arange(start, stop, dtype=np.float32)[:, None] * self._frequencies
        rows = np.empty((stop - start, self._table.shape[1]), np.float32)
        half = rows.shape[1] // 2
        rows[:, :half] = np.cos(angles, dtype=np.float64)
        rows[:, half:] = np.sin(angles, dtype=np.float64)
        if self._attention_factor != 1:
            rows *= np.float32(self._attention_factor)
        return rows


def inverse_frequencies(config: ModelConfig) -> tuple[F32, float]:
    """Inverse frequencies, f32 `[D/2]`, and the attention factor, for `rope_scaling.kind`."""
    scaling = config.rope_scaling
    # The power is taken in double and rounded once: f32 powers differ by a unit in the last place between libraries.
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    powers = np.power(np.float64(np.float32(config.rope_theta)), exponents.astype(np.float64)).astype(np.float32)
    plain: F32 = _ONE / powers
    match scaling.kind:
        case "none":
            return plain, 1.0
        case "linear":
            return plain / np.float32(scaling.factor), 1.0
        case "llama3":
            return _llama3(plain, scaling), 1.0
        case "yarn":
            return _yarn(powers, config, scaling), _yarn_attention_factor(scaling)


def _llama3(plain: F32, scaling: RopeScaling) -> F32:
    """Long waves are slowed by the factor, short ones kept, those between blended. Source: Llama 3.1."""
    wavelengths = np.float32(2 * math.pi) / plain
    slowed = plain / np.float32(scaling.factor)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (np.float32(scaling.original_max_position) / wavelengths - np.float32(low)) / np.float32(high - low)
    blended = (_ONE - smooth) * plain / np.float32(scaling.factor) + smooth * plain
    is_long = wavelengths > scaling.original_max_position / low
    is_short = wavelengths < scaling.original_max_position / high
    return np.where(is_long, slowed, np.where(is_short, plain, blended)).astype(np.float32)


def _yarn(powers: F32, config: ModelConfig, scaling: RopeScaling) -> F32:
    """Frequencies that turn often are kept, those that turn rarely are divided by the factor, with a ramp between.

    Source   Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023, section 3.2.
    """
    dimensions = config.head_dim

    def dimension_of(rotations: float) -> float:
        turns = scaling.original_max_position / (rotations * 2 * math.pi)
        return dimensions * math.log(turns) / (2 * math.log(config.rope_theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    if low == high:
        high += 0.001  # a ramp needs some width
    steps = (np.arange(dimensions // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = _ONE - np.clip(steps, 0, 1)
    slowed = _ONE / (np.float32(scaling.factor) * powers)
    return np.asarray(slowed * (_ONE - kept) + (_ONE / powers) * kept, np.float32)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
