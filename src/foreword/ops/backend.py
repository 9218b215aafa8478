"""The seam between models and kernels: what a backend must be able to do.

Letters: T tokens of the step, S sequences, H query heads, J KV heads, D head dimension, B block size, N blocks,
K inputs and M outputs of a product, R rows of logits, V vocabulary. All float arrays are f32 unless said otherwise, all
index arrays int32, the last axis contiguous. Arguments named `out` are written; nothing else is, except where said.

Every function is a map of rows: a row's result depends on that row alone, bit for bit, whatever the other rows,
the number of threads, or how the step was cut (design 4).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from foreword.ops.raw_tensor import MatrixPart

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
KVArray = NDArray[Any]
"""f32, f16, int16 or int8. K is `[N, J, D, B]`, V `[N, J, B, D]`; `kv_layout` says more of codes, int16 and int8."""


class PackedMatrix(Protocol):
    """A weight matrix in a backend's own layout; opaque but for its sizes."""

    @property
    def rows(self) -> int:
        """Outputs M."""

    @property
    def cols(self) -> int:
        """Inputs K."""

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""


class AttentionBatch(Struct, frozen=True, eq=False):
    """Where a step's queries and their keys lie; built once a step, used by every layer.

    Shapes   `positions [T]`, `slot_mapping [T]` (block id * B + offset), `block_tables [S, max_blocks]`,
             `query_start_loc [S + 1]`, `context_lens [S]` (positions present after this step's write).
    """

    positions: I32
    slot_mapping: I32
    block_tables: I32
    query_start_loc: I32
    context_lens: I32


class SamplingBatch(Struct, frozen=True, eq=False):
    """Sampling settings, one entry a row: f32 but for `top_k` (int32), `seed` (uint64) and the counters (uint32)."""

    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    seed: NDArray[np.uint64]
    sequence_index: NDArray[np.uint32]
    position: NDArray[np.uint32]


def greedy_batch(num_rows: int) -> SamplingBatch:
    """Of each row the first of the largest logits."""
    zeros = np.zeros(num_rows, np.float32)
    none, counts = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.uint32)
    return SamplingBatch(zeros, none, zeros + 1, zeros, np.zeros(num_rows, np.uint64), counts, counts)


class HeadOutputs(Struct, frozen=True, eq=False):
    """Where a forward pass puts what the head makes of its hidden states."""

    logits: F32  # [R, V]
    best: I32 | None = (
        None  # [R]: of each row's first `num_words`, the first of the largest, as `greedy_batch` draws it
    )
    num_words: int = 0


class TopLogprobs(Struct, frozen=True, eq=False):
    """Natural log-probabilities of given tokens and of the k best.

    Shapes   `logprobs [R]`, `ranks [R]` (1-based), `top_ids [R, k]`, `top_logprobs [R, k]`.
    """

    logprobs: F32
    ranks: I32
    top_ids: I32
    top_logprobs: F32


class LayerWeights(Struct, frozen=True, eq=False):
    """One layer of a llama-like model, in the order it is run. E hidden size, I intermediate size."""

    attention_norm: F32  # [E]
    qkv: PackedMatrix  # [(H + 2J) * D, E]: q, k and v heads, rotary pairs (i, i + D/2)
    qkv_bias: F32 | None  # [(H + 2J) * D]
    q_norm: F32 | None  # [D]
    k_norm: F32 | None  # [D]
    output: PackedMatrix  # [E, H * D]
    output_bias: F32 | None  # [E]
    mlp_norm: F32  # [E]
    gate_up: PackedMatrix  # [2I, E]: gate, then up
    gate_up_bias: F32 | None  # [2I]
    down: PackedMatrix  # [E, I]
    down_bias: F32 | None  # [E]


class DecoderWeights(Struct, frozen=True, eq=False):
    """What a llama-like model is made of. V words, E hidden size."""

    embedding: PackedMatrix  # [V, E]
    layers: Sequence[LayerWeights]
    final_norm: F32  # [E]
    head: PackedMatrix  # [V, E]; the embedding itself where they are tied


class LayerCaches(Protocol):
    """K and V of every layer, as the kernels read them."""

    def k_cache(self, layer: int) -> KVArray:
        """K of one layer."""

    def v_cache(self, layer: int) -> KVArray:
        """V of one layer."""


class DecoderBuffers(Protocol):
    """Activations of a step; `last_hidden` and `last_attention` hold the rows picked for the last layer's end."""

    hidden: F32  # [max_tokens, E]
    last_hidden: F32  # [max_tokens, E]
    qkv: F32  # [max_tokens, (H + 2J) * D]
    attention: F32  # [max_tokens, H * D]
    last_attention: F32  # [max_tokens, H * D]
    gate_up: F32  # [max_tokens, 2I]


class DecoderSizes(Struct, frozen=True):
    """What a stack of layers is, beside its weights."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    scale: float


class NotFiniteError(ValueError):
    """Weights of which a value is infinite or not a number; `tensor` names them."""

    def __init__(self, tensor: str) -> None:
        super().__init__(f"{tensor}: holds a value that is not a finite number")
        self.tensor = tensor


class Packing(Protocol):
    """Matrices that are being packed, where the backend can, beside whatever else is done."""

    def matrices(self) -> list[PackedMatrix]:
        """All of them, in their order; to be asked for once.

        Raises:
            NotFiniteError: a part holds a value that is not finite.
        """


class Decoder(Protocol):
    """A model as one call: `embed`, then each layer's kernels in turn, then the head's, with the same bits."""

    def forward(
        self,
        token_ids: I32,
        batch: AttentionBatch,
        cos_sin: F32,
        caches: LayerCaches,
        buffers: DecoderBuffers,
        rows: I32 | None,
        head: HeadOutputs | None,
    ) -> F32:
        """Hidden states `[T, E]` before the final norm, or `[R, E]` of `rows`: a view of the buffers.

        `head` is filled, where it is given.
        """


class Backend(Protocol):
    """Kernels over packed weights and paged K/V."""

    @property
    def name(self) -> str:
        """`reference` or `cpu`."""

    @property
    def instruction_set(self) -> str:
        """What the kernels were compiled for, e.g. `avx2`; part of the cache identity."""

    @property
    def num_threads(self) -> int:
        """Threads a kernel uses."""

    def pack_matrix(self, parts: Sequence[MatrixPart]) -> PackedMatrix:
        """Lay weights out for `linear`; outputs of the parts follow one another.

        Raises:
            ValueError: a part's type is not in `PACKED_EXACTLY`, or sizes disagree.
        """

    def begin_packing(self, matrices: Sequence[Sequence[MatrixPart]]) -> Packing:
        """Begin to lay out several matrices, each of parts as for `pack_matrix`.

        Raises:
            ValueError: a part's type is not in `PACKED_EXACTLY`, or sizes disagree.
        """

    def embed(self, table: PackedMatrix, token_ids: I32, out: F32) -> None:
        """`out[t] = table[token_ids[t]]`; `out [T, K]`."""

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None:
        """`out[t] = x[t] / sqrt(mean(x[t]²) + eps) * weight`; `x`, `out` `[T, K]`."""

    def linear(
        self, x: F32, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None, accumulate: bool = False
    ) -> None:
        """`out[t] = x[t] @ matrix.T + bias`, added to `out[t]` where `accumulate`; `x [T, K]`, `out [T, M]`.

        Weights of 8 or 4 bits round each row of `x` to int8 per group of 32 first.
        """

    def norm_linear(
        self, x: F32, norm_weight: F32, eps: float, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None
    ) -> None:
        """`linear` of `rms_norm(x)`, in one parallel region; same bits as the two calls."""

    def swiglu_linear(
        self, gate_up: F32, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None, accumulate: bool = False
    ) -> None:
        """`linear` of `silu(gate) * up`, where `gate_up [T, 2K]` holds gate, then up."""

    def rope_store_kv(
        self,
        qkv: F32,
        batch: AttentionBatch,
        cos_sin: F32,
        k_cache: KVArray,
        v_cache: KVArray,
        *,
        q_norm: F32 | None = None,
        k_norm: F32 | None = None,
        eps: float = 0.0,
    ) -> None:
        """Rotate q in place, write rotated k and v to their slots, rounded once to the cache's dtype.

        `qkv [T, (H + 2J) * D]`: query, key, value heads. `cos_sin [positions, D]`: D/2 cosines, then D/2 sines; pairs
        are `(x[i], x[i + D/2])`. `q_norm`, `k_norm` `[D]`: RMS norm of each head before the rotation.
        """

    def paged_attention(
        self, qkv: F32, batch: AttentionBatch, k_cache: KVArray, v_cache: KVArray, scale: float, out: F32
    ) -> None:
        """Causal attention of each scheduled token over its sequence's blocks, GQA-grouped; `out [T, H * D]`.

        Slots past a token's position are never read into its sums, whatever they hold.
        """

    def copy_blocks(self, k_cache: KVArray, v_cache: KVArray, sources: I32, destinations: I32) -> None:
        """Copy whole blocks of one layer, in order."""

    def decoder(self, weights: DecoderWeights, sizes: DecoderSizes) -> Decoder | None:
        """Layers and head as one call, for steps where the calls themselves would show; None: call kernel by kernel."""

    def sample(self, logits: F32, batch: SamplingBatch) -> I32:
        """Draw one token a row from `logits [R, V]`; returns `[R]`. Rules in `csrc/include/foreword/sampling.h`."""

    def top_logprobs(self, logits: F32, token_ids: I32, k: int) -> TopLogprobs:
        """Log-probability and rank of `token_ids [R]` and the k best tokens of each row of `logits [R, V]`."""
