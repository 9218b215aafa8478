"""Do the kernels of this machine compute what the reference computes? A few products, in a few milliseconds."""

import numpy as np

from foreword.ops.backend import F32, Backend
from foreword.ops.quantise import requantise
from foreword.ops.raw_tensor import MatrixPart, RawTensor
from foreword.ops.reference import ReferenceBackend

TOLERANCE = 1e-3
"""Largest difference over the largest value; f32 sums of 64 terms in another order stay far below it, and so does the
rounding to int8, which both backends do alike."""

_ROWS, _COLS = 32, 64


def largest_difference(backend: Backend) -> float:
    """Largest difference of a backend from the reference, relative to the largest value, over each kind of weight."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((_ROWS, _COLS)).astype(np.float32)
    x = rng.standard_normal((3, _COLS)).astype(np.float32)
    worst = 0.0
    for kind in ("F32", "Q8_0", "Q4_1"):
        part = MatrixPart(_tensor(kind, weights))
        results = []
        for each in (backend, ReferenceBackend()):
            out = np.empty((3, _ROWS), np.float32)
            each.linear(x, each.pack_matrix([part]), out)
            results.append(out)
        worst = max(worst, float(np.abs(results[0] - results[1]).max() / np.abs(results[1]).max()))
    return worst


def _tensor(kind: str, weights: F32) -> RawTensor:
    plain = RawTensor("self-test", "F32", weights.shape, weights.reshape(-1).view(np.uint8))
    return plain if kind == "F32" else requantise(plain, kind)
