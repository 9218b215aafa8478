"""Matrices packed together, beside their caller, are what each is alone; a value that is not finite is told by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.backends import BACKENDS, REFERENCE, normal
from tests.ops.test_cpu_equals_reference import q4_k, raw

from foreword import _native
from foreword.ops.backend import Backend, NotFiniteError
from foreword.ops.cpu import CpuBackend
from foreword.ops.raw_tensor import PACKED_EXACTLY, MatrixPart, RawTensor

OTHER = CpuBackend(num_threads=1)
EVERY: list[Backend] = [REFERENCE, *BACKENDS.values()]


def random_tensor(rng: np.random.Generator, kind: str) -> RawTensor:
    return q4_k(20, 256, rng) if kind == "Q4_K" else raw(normal(rng, 20, 256), kind)


def named(name: str, tensor: RawTensor) -> RawTensor:
    return RawTensor(name, tensor.type, tensor.shape, tensor.data)


@given(st.lists(st.lists(st.sampled_from(PACKED_EXACTLY), min_size=1, max_size=3), max_size=4), st.integers(0, 2**32))
def test_several_matrices_are_what_each_is_alone(types: list[list[str]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrices = [[MatrixPart(random_tensor(rng, kind)) for kind in kinds] for kinds in types]
    x = normal(rng, 2, 256)
    for backend in EVERY:
        packed = backend.begin_packing(matrices).matrices()

        assert len(packed) == len(matrices)
        for parts, got in zip(matrices, packed, strict=True):
            outs = [np.zeros((2, 20 * len(parts)), np.float32) for _ in range(2)]
            backend.linear(x, got, outs[0])
            backend.linear(x, backend.pack_matrix(parts), outs[1])
            assert outs[0].tobytes() == outs[1].tobytes()


@pytest.mark.parametrize("kind", PACKED_EXACTLY)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which makes the weights
def test_the_first_tensor_with_a_value_that_is_not_finite_is_named(kind: str, bad: float) -> None:
    rng = np.random.default_rng(1)
    good = [MatrixPart(named(f"good {i}", random_tensor(rng, kind))) for i in range(2)]
    tensor = random_tensor(rng, kind)
    data = tensor.data.copy().reshape(20, -1)
    scale = np.float32(bad) if kind == "F32" else np.float16(bad)
    if kind == "BF16":
        data[17, -2:] = np.array([np.float32(bad)]).view(np.uint8)[2:]
    elif kind in ("F32", "F16"):
        data[17, -scale.nbytes :] = np.array([scale]).view(np.uint8)
    else:
        data[17, :2] = np.array([scale]).view(np.uint8)
    spoilt = [MatrixPart(RawTensor(f"bad {i}", kind, tensor.shape, data.reshape(-1))) for i in range(2)]
    for backend in EVERY:
        packing = backend.begin_packing([good, [good[0], spoilt[0], spoilt[1]], [spoilt[1]]])

        with pytest.raises(NotFiniteError, match="bad 0: holds a value that is not a finite number") as caught:
            packing.matrices()

        assert caught.value.tensor == "bad 0"


def test_arrays_and_context_stay_while_they_are_packed() -> None:
    rng = np.random.default_rng(2)
    values = normal(rng, 2000, 256)
    packing = CpuBackend(num_threads=2).begin_packing([[MatrixPart(raw(values, "F32"))] for _ in range(8)])

    packed = packing.matrices()

    out = np.zeros((1, 256), np.float32)
    for matrix in packed:
        OTHER.embed(matrix, np.array([1999], np.int32), out)
        assert np.array_equal(out[0], values[1999])


@pytest.mark.parametrize(
    ("matrices", "expected"),
    [
        ([[]], "parts: expected at least one"),
        ([[("Q8_0", 24, 65, np.zeros(1, np.uint8), None)]], "cols: expected a whole number"),
        ([3], "matrices: expected a list, got int"),
    ],
)
def test_what_is_no_matrix_is_refused(matrices: list[object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        _native.Packing(_native.Context(1, "auto"), matrices)  # type: ignore[arg-type]
