"""How near are products with packed weights to the machine's limits?

Question   multiply-adds and weight bytes a second of SmolLM2-135M's layers, by rows of activations and threads.
Regime     1 row: memory bandwidth; copies of each matrix are read in turn, as a step of a model reads its layers, so
           that caches hold little of them. 16 and 512 rows: arithmetic.
Ideal      1 row: the read bandwidth measured in the same run. More rows, on a Zen 3 core: 43 multiply-adds a cycle
           for 4 bits (3 vector operations a cycle, 2 for each 32), 32 for 8 bits, 16 for f32.
Baseline   NumPy's BLAS on the same weights in f32, all its threads, interleaved with ours. Its threads are told to
           sleep at once between calls: by default they spin for milliseconds, on the processors that ours then need.
Run        python benchmarks/kernels/bench_matmul.py [seconds a row]
"""

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # log2 of cycles; read when NumPy loads it

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from foreword.ops.backend import F32, PackedMatrix
from foreword.ops.cpu import CpuBackend
from foreword.ops.raw_tensor import MatrixPart, RawTensor

SHAPES = (
    (960, 576, "Q4_1"),
    (576, 576, "Q4_1"),
    (3072, 576, "Q4_1"),
    (576, 1536, "Q4_1"),
    (49152, 576, "Q8_0"),
    (3072, 576, "F32"),
)
ROWS = (1, 16, 512)
THREADS = (1, 2)
COLD_BYTES = 96 << 20  # of copies of a matrix: past any cache


@dataclass(frozen=True, slots=True)
class Case:
    """A weight with its f32 values and its copies for the decode rows."""

    outputs: int
    inputs: int
    type: str
    values: F32
    copies: list[PackedMatrix]


@dataclass(frozen=True, slots=True)
class Result:
    """Best and median over the repetitions; `gmac_s`, `gb_s` of the best."""

    outputs: int
    inputs: int
    type: str
    rows: int
    threads: int
    best_us: float
    median_us: float
    gmac_s: float
    gb_s: float
    blas_gmac_s: float


def pack(backend: CpuBackend, outputs: int, inputs: int, type_name: str, seed: int) -> Case:
    """Random weights of a type, packed often enough that reading all copies leaves the caches cold."""
    values = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32) * np.float32(0.04)
    data: NDArray[np.uint8] = values.view(np.uint8).reshape(-1)
    if type_name != "F32":
        quantised = quantize(values, GGMLQuantizationType[type_name])
        values = dequantize(quantised, GGMLQuantizationType[type_name])
        data = np.ascontiguousarray(quantised).view(np.uint8).reshape(-1)
    part = MatrixPart(RawTensor("weight", type_name, (outputs, inputs), data))
    num_copies = -(-COLD_BYTES // data.nbytes)
    return Case(outputs, inputs, type_name, values, [backend.pack_matrix([part]) for _ in range(num_copies)])


def verify(backend: CpuBackend, case: Case) -> None:
    """Products near BLAS's (int8 rounding is 0.4 % of a row's size), and the same bits for a row alone.

    Raises:
        AssertionError: they are not.
    """
    x = np.random.default_rng(1).standard_normal((17, case.inputs)).astype(np.float32)
    out, alone = np.empty((17, case.outputs), np.float32), np.empty((1, case.outputs), np.float32)
    backend.linear(x, case.copies[0], out)
    exact = x @ case.values.T
    error = float(np.linalg.norm(out - exact) / np.linalg.norm(exact))
    assert error < (1e-5 if case.type == "F32" else 0.02), f"relative error {error}"
    for t in range(17):
        backend.linear(x[t : t + 1], case.copies[0], alone)
        assert np.array_equal(alone[0], out[t]), f"row {t} differs alone"


def timed(calls: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Seconds of each call, taken in turn until the time is up."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return times


def measure(backend: CpuBackend, case: Case, rows: int, seconds: float) -> Result:
    """One line of the table."""
    x = np.random.default_rng(2).standard_normal((rows, case.inputs)).astype(np.float32)
    out, blas_out = (np.empty((rows, case.outputs), np.float32) for _ in range(2))
    copies = case.copies if rows == 1 else case.copies[:1]

    def ours() -> None:
        for matrix in copies:
            backend.linear(x, matrix, out)

    taken, blas = timed([ours, lambda: np.matmul(x, case.values.T, out=blas_out)], seconds)
    best, median = min(taken) / len(copies), statistics.median(taken) / len(copies)
    products = rows * case.outputs * case.inputs
    return Result(
        *(case.outputs, case.inputs, case.type, rows, backend.num_threads, best * 1e6, median * 1e6),
        gmac_s=products / best / 1e9,
        gb_s=copies[0].num_bytes / best / 1e9,
        blas_gmac_s=products / min(blas) / 1e9,
    )


def read_bandwidth(num_threads: int, seconds: float) -> float:
    """GB/s of `max` over 96 MiB a thread, which NumPy reads without the GIL: the best of the repetitions."""
    arrays = [np.zeros(COLD_BYTES // 4, np.int32) + 1 for _ in range(num_threads)]

    def read_all() -> None:
        workers = [threading.Thread(target=array.max) for array in arrays]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    (taken,) = timed([read_all], seconds)
    return num_threads * COLD_BYTES / min(taken) / 1e9


def main(seconds: float) -> None:
    """Verify, then time; a table for people, the last line for machines."""
    results = []
    bandwidth = {threads: read_bandwidth(threads, seconds) for threads in THREADS}
    print("read bandwidth: " + ", ".join(f"{t} threads {b:.1f} GB/s" for t, b in bandwidth.items()))
    print("     N     K type     T thr   best µs    median  GMAC/s   GB/s of peak   BLAS")
    for seed, (outputs, inputs, type_name) in enumerate(SHAPES):
        case = pack(CpuBackend(num_threads=2), outputs, inputs, type_name, seed)
        for threads in THREADS:
            backend = CpuBackend(num_threads=threads)
            verify(backend, case)
            for rows in ROWS:
                r = measure(backend, case, rows, seconds)
                results.append(r)
                share = f"{r.gb_s / bandwidth[threads]:7.0%}" if rows == 1 else " " * 7
                print(
                    f"{outputs:6} {inputs:5} {type_name:5} {rows:4} {threads:3} {r.best_us:9.1f} {r.median_us:9.1f}"
                    f" {r.gmac_s:7.1f} {r.gb_s:6.1f} {share} {r.blas_gmac_s:6.1f}",
                    flush=True,
                )
    print(json.dumps({"bench": "matmul", "read_gb_s": bandwidth, "rows": [asdict(r) for r in results]}))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.5)
