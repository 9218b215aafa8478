"""How near is paged attention to the machine's limits?

Question   multiply-adds a second of a prefill chunk, and bytes a second of a decode step, by context and KV dtype;
           what a prefix that 16 streams share costs against 16 copies of it.
Regime     prefill: f32 multiply-adds (a unit of 32 positions reads K and V once). Decode: memory bandwidth; the K and V
           of 30 layers are read in turn, as a step of a model does, so that caches hold little of them.
Ideal      the f32 multiply-add peak (16 lanes x clock x cores: 88 G/s on two Zen 3 cores); DRAM bandwidth (12 to 18
           GB/s there).
Baseline   NumPy on contiguous f32 K and V: two BLAS products and a softmax for each KV head, nothing masked.
Run        python benchmarks/kernels/bench_attention.py [threads] [seconds a row]
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreword.core.config import KV_DTYPE_BYTES, KV_SCALE_BYTES, KVDtype, kv_head_bytes
from foreword.ops.backend import F32, I32, AttentionBatch, KVArray
from foreword.ops.cpu import CpuBackend
from foreword.ops.kv_layout import NUMPY_DTYPE, array_shapes, key_parts, value_parts
from foreword.ops.reference import ReferenceBackend

HEADS, KV_HEADS, DIM, BLOCK_SIZE = 9, 3, 64, 16  # SmolLM2-135M
LAYERS = 30
SETTLE_S = 0.05  # BLAS threads spin on after a product; they must not take our core
SCALE = DIM**-0.5


@dataclass(frozen=True, slots=True)
class Case:
    """`streams` sequences of `context` tokens; the last `queries` are computed, the first `shared` common to all."""

    name: str
    queries: int
    context: int
    kv_dtype: KVDtype
    streams: int = 1
    shared: int = 0

    @property
    def multiply_adds(self) -> int:
        """Of Q K^T and P V."""
        first = self.context - self.queries + 1
        positions = self.queries * (first + self.context) // 2
        return self.streams * positions * HEADS * DIM * 2

    @property
    def kv_bytes(self) -> int:
        """K and V of the distinct tokens, once."""
        tokens = self.shared + self.streams * (self.context - self.shared)
        return tokens * KV_HEADS * 2 * kv_head_bytes(self.kv_dtype, DIM)


@dataclass(frozen=True, slots=True)
class Inputs:
    """One layer's arrays; `batches` differ in their blocks."""

    qkv: F32
    batches: list[AttentionBatch]
    k_cache: KVArray
    v_cache: KVArray
    out: F32


def make_inputs(case: Case, rng: np.random.Generator, num_layers: int) -> Inputs:
    """Random K and V behind block tables in random order; each layer has blocks of its own."""
    num_own = -(-case.context // BLOCK_SIZE)
    num_shared = case.shared // BLOCK_SIZE
    num_blocks = num_layers * (num_shared + case.streams * (num_own - num_shared))
    order = rng.permutation(num_blocks).astype(np.int32)
    batches = []
    for part in np.split(order, num_layers):
        common, own = part[:num_shared], part[num_shared:].reshape(case.streams, -1)
        tables = np.concatenate([np.tile(common, (case.streams, 1)), own], axis=1)
        batches.append(make_batch(case, np.ascontiguousarray(tables)))
    k_shape, v_shape = array_shapes(num_blocks, KV_HEADS, DIM, BLOCK_SIZE, case.kv_dtype)
    k, v = np.empty(k_shape, NUMPY_DTYPE[case.kv_dtype]), np.empty(v_shape, NUMPY_DTYPE[case.kv_dtype])
    for elements, _, scales in (key_parts(k), value_parts(v)):
        if scales is None:
            elements[:] = rng.standard_normal(elements.shape, np.float32)
        else:
            most = 127 if case.kv_dtype == "int8" else 4000  # 64 of these are no longer than a key of int16 may be
            elements[:] = rng.integers(-most, most + 1, elements.shape, elements.dtype)
            scales[:] = rng.uniform(0.6, 1.8, scales.shape) / most
    num_tokens = case.streams * case.queries
    return Inputs(
        rng.standard_normal((num_tokens, (HEADS + 2 * KV_HEADS) * DIM), np.float32),
        batches,
        k,
        v,
        np.empty((num_tokens, HEADS * DIM), np.float32),
    )


def make_batch(case: Case, tables: I32) -> AttentionBatch:
    """The step in which each sequence's last tokens are computed."""
    positions = np.tile(np.arange(case.context - case.queries, case.context, dtype=np.int32), case.streams)
    starts = np.arange(case.streams + 1, dtype=np.int32) * case.queries
    lengths = np.full(case.streams, case.context, np.int32)
    return AttentionBatch(positions, positions, tables, starts.astype(np.int32), lengths)


def dense_baseline(case: Case, rng: np.random.Generator) -> Callable[[], object]:
    """The same products for contiguous f32 arrays through BLAS."""
    rows = case.queries * HEADS // KV_HEADS
    q = rng.standard_normal((case.streams, KV_HEADS, rows, DIM), np.float32)
    k = rng.standard_normal((case.streams, KV_HEADS, DIM, case.context), np.float32)
    v = rng.standard_normal((case.streams, KV_HEADS, case.context, DIM), np.float32)

    def run() -> NDArray[np.float32]:
        scores = q @ k * np.float32(SCALE)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        return np.asarray(scores @ v / scores.sum(axis=-1, keepdims=True), np.float32)

    return run


def verify(backend: CpuBackend, rng: np.random.Generator) -> None:
    """Refuse to time what is wrong."""
    for kv_dtype in KV_DTYPE_BYTES:
        case = Case("check", 20, 300, kv_dtype, streams=3, shared=128)
        inputs = make_inputs(case, rng, 1)
        expected = np.empty_like(inputs.out)
        batch = inputs.batches[0]
        backend.paged_attention(inputs.qkv, batch, inputs.k_cache, inputs.v_cache, SCALE, inputs.out)
        ReferenceBackend().paged_attention(inputs.qkv, batch, inputs.k_cache, inputs.v_cache, SCALE, expected)
        worst = float(np.abs(inputs.out - expected).max())
        if not worst < (1e-5 if KV_SCALE_BYTES[kv_dtype] == 0 else 1e-4):  # a code may round to either neighbour
            raise SystemExit(f"paged attention differs from the reference by {worst}")


def measure(case: Case, backend: CpuBackend, rng: np.random.Generator, seconds: float) -> dict[str, object]:
    """Time ours and the baseline in turn; microseconds a layer."""
    inputs = make_inputs(case, rng, LAYERS if case.queries == 1 and case.streams == 1 else 1)
    baseline = dense_baseline(case, rng)
    ours_s: list[float] = []
    baseline_s: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(ours_s) < 3:
        for batch in inputs.batches if len(inputs.batches) > 1 else inputs.batches * 3:
            start = time.perf_counter()
            backend.paged_attention(inputs.qkv, batch, inputs.k_cache, inputs.v_cache, SCALE, inputs.out)
            ours_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        baseline()
        baseline_s.append(time.perf_counter() - start)
        time.sleep(SETTLE_S)
    median, best = statistics.median(ours_s), min(ours_s)
    return {
        "case": case.name,
        "min_us": round(best * 1e6, 1),
        "median_us": round(median * 1e6, 1),
        "spread": round((max(ours_s) - best) / median, 2),
        "gmac_s": round(case.multiply_adds / median / 1e9, 1),
        "kv_gb_s": round(case.kv_bytes / median / 1e9, 2),
        "numpy_ratio": round(statistics.median(baseline_s) / median, 2),
    }


def cases() -> list[Case]:
    """What a step of the model asks for."""
    listed = []
    for kv_dtype in KV_DTYPE_BYTES:
        listed += [
            Case(f"prefill 512 at {context} {kv_dtype}", 512, context, kv_dtype) for context in (512, 2048, 6000)
        ]
        listed += [Case(f"decode at {context} {kv_dtype}", 1, context, kv_dtype) for context in (64, 1024, 6000)]
        listed += [
            Case(f"warm 32 at 2032 {kv_dtype}", 32, 2032, kv_dtype),
            Case(f"decode 16 at 4224, nothing shared {kv_dtype}", 1, 4224, kv_dtype, streams=16),
            Case(f"decode 16 at 4224, 4096 shared {kv_dtype}", 1, 4224, kv_dtype, streams=16, shared=4096),
        ]
    return listed


def main() -> None:
    """Print a table, then one line of JSON."""
    num_threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    backend = CpuBackend(num_threads=num_threads)
    verify(backend, np.random.default_rng(0))
    rows = []
    print(f"{'case':<44}{'min us':>10}{'median us':>11}{'GMAC/s':>8}{'KV GB/s':>9}{'x numpy':>9}")
    for case in cases():
        row = measure(case, backend, np.random.default_rng(1), seconds)
        rows.append(row)
        print(
            f"{row['case']:<44}{row['min_us']:>10}{row['median_us']:>11}{row['gmac_s']:>8}"
            f"{row['kv_gb_s']:>9}{row['numpy_ratio']:>9}"
        )
    card = {"bench": "attention", "threads": num_threads, "instruction_set": backend.instruction_set}
    print(json.dumps({**card, "rows": rows}))


if __name__ == "__main__":
    main()
