"""Whatever Python passes, the product bindings answer with one clear error or a right result, never a crash."""

import multiprocessing
import re
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from foreword import _native

F32 = NDArray[np.float32]
Call = Callable[["Fixture"], object]


class Fixture:
    """A `[24, 64]` Q8_0 matrix of ones, and arrays that fit it."""

    def __init__(self) -> None:
        self.context = _native.Context(2, "auto")
        block = np.frombuffer(np.float16(1).tobytes() + b"\x01" * 32, np.uint8)
        self.data: NDArray[np.uint8] = np.tile(block, 24 * 2)
        self.matrix = _native.pack_matrix(self.context, [("Q8_0", 24, 64, self.data, None)])
        self.x: F32 = np.ones((3, 64), np.float32)
        self.gate_up: F32 = np.ones((3, 128), np.float32)
        self.out: F32 = np.zeros((3, 24), np.float32)
        self.weight: F32 = np.ones(64, np.float32)
        self.ids: NDArray[np.int32] = np.array([0, 23], np.int32)
        self.rows: F32 = np.zeros((2, 64), np.float32)

    def pack(self, *part: object) -> object:
        return _native.pack_matrix(self.context, [part])  # type: ignore[list-item]

    def linear(self, x: F32, out: F32, bias: F32 | None = None) -> None:
        _native.linear(self.context, x, self.matrix, out, bias, False)


@pytest.fixture
def given() -> Fixture:
    return Fixture()


BAD_VALUES: dict[str, Call] = {
    "num_threads: expected 1 to 256, got 0": lambda g: _native.Context(0, "auto"),
    "num_threads: expected 1 to 256, got 257": lambda g: _native.Context(257, "auto"),
    "got 'avx9000'": lambda g: _native.Context(1, "avx9000"),
    "parts: expected at least one": lambda g: _native.pack_matrix(g.context, []),
    "parts[0]: expected a tuple of 5, got 4": lambda g: g.pack("Q8_0", 24, 64, g.data),
    "parts[0] type: expected a type of F32": lambda g: g.pack("Q6_K", 24, 64, g.data, None),
    "parts[0] rows: expected 1 to": lambda g: g.pack("Q8_0", 0, 64, g.data, None),
    "parts[0] cols: expected 1 to": lambda g: g.pack("Q8_0", 24, -64, g.data, None),
    "parts[0] cols: expected a whole number": lambda g: g.pack("Q8_0", 24, 65, g.data, None),
    "parts[0] data: expected bytes 1632, got 1631": lambda g: g.pack("Q8_0", 24, 64, g.data[:-1], None),
    "parts[0] data: expected bytes 18446744056529682436": lambda g: g.pack("F32", 2**31 - 1, 2**31 - 1, g.data, None),
    "parts[0] data: expected a contiguous uint8": lambda g: g.pack("Q8_0", 24, 64, g.data.view(np.int8), None),
    "parts[0] row_order: expected rows 24, got 2": lambda g: g.pack("Q8_0", 24, 64, g.data, g.ids),
    "row_order[0] = 24": lambda g: g.pack("Q8_0", 24, 64, g.data, np.arange(24, 0, -1, dtype=np.int32)),
    "x: expected columns 64, got 63": lambda g: g.linear(g.x[:, 1:], g.out),
    "out: expected rows 3, got 2": lambda g: g.linear(g.x, g.out[:2]),
    "out: expected columns 24, got 23": lambda g: g.linear(g.x, g.out[:, 1:]),
    "bias: expected values 24, got 64": lambda g: g.linear(g.x, g.out, g.weight),
    "x: expected a contiguous last axis": lambda g: g.linear(np.ones((3, 128), np.float32)[:, ::2], g.out),
    "x: expected rows that do not overlap": lambda g: g.linear(g.x[::-1], g.out),
    "x: expected rows that do not overlap, got row stride 0": lambda g: g.linear(
        np.broadcast_to(g.weight, (3, 64)), g.out
    ),
    "gate_up: expected columns 128": lambda g: _native.swiglu_linear(g.context, g.x, g.matrix, g.out, None, False),
    "norm_weight: expected values 64, got 63": lambda g: _native.norm_linear(
        g.context, g.x, g.weight[1:], 1e-5, g.matrix, g.out, None
    ),
    "eps: expected a finite number": lambda g: _native.rms_norm(g.context, g.x, g.weight, float("nan"), g.x),
    "weight: expected values 64": lambda g: _native.rms_norm(g.context, g.x, g.weight[1:], 1e-5, g.x),
    "token_ids[1]: expected 0 to 23, got 24": lambda g: _native.embed(g.context, g.matrix, g.ids + 1, g.rows),
    "token_ids[0]: expected 0 to 23, got -1": lambda g: _native.embed(g.context, g.matrix, g.ids - 1, g.rows),
    "out: expected columns 64, got 24": lambda g: _native.embed(g.context, g.matrix, g.ids, g.out[:2]),
}

WRONG_TYPES: dict[str, Call] = {
    "f64 x": lambda g: g.linear(g.x.astype(np.float64), g.out),
    "one dimension": lambda g: g.linear(g.weight, g.out),
    "list": lambda g: g.linear([[1.0] * 64], g.out),  # type: ignore[arg-type]
    "read-only out": lambda g: g.linear(g.x, np.broadcast_to(g.out, (3, 24))),
    "int64 ids": lambda g: _native.embed(g.context, g.matrix, g.ids.astype(np.int64), g.rows),
    "no matrix": lambda g: _native.linear(g.context, g.x, None, g.out, None, False),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("message", BAD_VALUES)
def test_a_bad_value_is_a_value_error_that_names_it_and_out_is_unchanged(given: Fixture, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        BAD_VALUES[message](given)

    assert not given.out.any()


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_a_wrong_type_is_refused_not_converted(given: Fixture, case: str) -> None:
    with pytest.raises(TypeError):
        WRONG_TYPES[case](given)


def test_rows_with_strides_and_no_rows_are_fine(given: Fixture) -> None:
    wide = np.full((3, 40), 7.0, np.float32)

    given.linear(np.ones((3, 100), np.float32)[:, 10:74], wide[:, 8:32])
    given.linear(given.x[:0], given.out[:0])

    np.testing.assert_allclose(wide[:, 8:32], 64.0, rtol=1e-6)
    assert (wide[:, :8] == 7).all()
    assert (wide[:, 32:] == 7).all()


def test_threads_may_share_a_context(given: Fixture) -> None:
    outs = [np.zeros((3, 24), np.float32) for _ in range(4)]

    def work(out: F32) -> None:
        for _ in range(100):
            given.linear(given.x, out)

    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for out in outs:
        np.testing.assert_allclose(out, 64.0, rtol=1e-6)


def _sum_in_child(given: Fixture, queue: "multiprocessing.Queue[float]") -> None:
    given.linear(given.x, given.out)
    queue.put(float(given.out.sum()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of any fork while threads run
def test_a_context_works_in_a_forked_child(given: Fixture) -> None:
    given.linear(given.x, given.out)
    fork = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[float] = fork.Queue()

    child = fork.Process(target=_sum_in_child, args=(given, queue))
    child.start()
    total = queue.get(timeout=30)
    child.join(timeout=30)

    assert child.exitcode == 0
    assert total == pytest.approx(64 * 24 * 3, rel=1e-6)
