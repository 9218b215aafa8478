"""Kernels in C++: checks nothing itself, since the bindings check every shape, dtype and index they are given.

`copy_blocks` is NumPy's; whoever asks for copies checks their blocks.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foreword import _native
from foreword.ops.backend import (
    F32,
    I32,
    AttentionBatch,
    DecoderBuffers,
    DecoderSizes,
    DecoderWeights,
    HeadOutputs,
    KVArray,
    LayerCaches,
    NotFiniteError,
    PackedMatrix,
    SamplingBatch,
    TopLogprobs,
)
from foreword.ops.kv_layout import copy_blocks
from foreword.ops.raw_tensor import MatrixPart

_PIECES_AT_ONCE = 200  # some 20 ms a thread, so that an interrupt gets in


class CpuBackend:
    """`Backend` on this machine's cores.

    `instruction_set` is `auto` (the best this machine has), `avx2`, `neon` or `scalar`.

    Raises:
        ValueError: no such instruction set here, or `num_threads` is not from 1 to 256.
    """

    name = "cpu"

    def __init__(self, *, num_threads: int = 1, instruction_set: str = "auto") -> None:
        self._context = _native.Context(num_threads, instruction_set)
        self.instruction_set: str = self._context.instruction_set
        self.num_threads: int = self._context.num_threads

    def pack_matrix(self, parts: Sequence[MatrixPart]) -> PackedMatrix:
        """See `Backend.pack_matrix`."""
        return _native.pack_matrix(self._context, _described(parts))

    def begin_packing(self, matrices: Sequence[Sequence[MatrixPart]]) -> "CpuPacking":
        """See `Backend.begin_packing`."""
        return CpuPacking(self._context, matrices)

    def embed(self, table: PackedMatrix, token_ids: I32, out: F32) -> None:
        """See `Backend.embed`."""
        _native.embed(self._context, _own(table), token_ids, out)

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None:
        """See `Backend.rms_norm`."""
        _native.rms_norm(self._context, x, weight, eps, out)

    def linear(
        self, x: F32, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None, accumulate: bool = False
    ) -> None:
        """See `Backend.linear`."""
        _native.linear(self._context, x, _own(matrix), out, bias, accumulate)

    def norm_linear(
        self, x: F32, norm_weight: F32, eps: float, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None
    ) -> None:
        """See `Backend.norm_linear`."""
        _native.norm_linear(self._context, x, norm_weight, eps, _own(matrix), out, bias)

    def swiglu_linear(
        self, gate_up: F32, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None, accumulate: bool = False
    ) -> None:
        """See `Backend.swiglu_linear`."""
        _native.swiglu_linear(self._context, gate_up, _own(matrix), out, bias, accumulate)

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
        """See `Backend.rope_store_kv`."""
        _native.rope_store_kv(
            self._context,
            qkv,
            batch.positions,
            batch.slot_mapping,
            cos_sin,
            k_cache,
            v_cache,
            q_norm,
            k_norm,
            eps,
        )

    def paged_attention(
        self, qkv: F32, batch: AttentionBatch, k_cache: KVArray, v_cache: KVArray, scale: float, out: F32
    ) -> None:
        """See `Backend.paged_attention`."""
        _native.paged_attention(
            self._context,
            qkv,
            batch.block_tables,
            batch.query_start_loc,
            batch.context_lens,
            k_cache,
            v_cache,
            scale,
            out,
        )

    def copy_blocks(self, k_cache: KVArray, v_cache: KVArray, sources: I32, destinations: I32) -> None:
        """See `Backend.copy_blocks`."""
        copy_blocks(k_cache, v_cache, sources, destinations)

    def decoder(self, weights: DecoderWeights, sizes: DecoderSizes) -> "CpuDecoder":
        """See `Backend.decoder`."""
        return CpuDecoder(self._context, weights, sizes)

    def sample(self, logits: F32, batch: SamplingBatch) -> I32:
        """See `Backend.sample`."""
        return _native.sample(
            self._context,
            logits,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            batch.seed,
            batch.sequence_index,
            batch.position,
        )

    def top_logprobs(self, logits: F32, token_ids: I32, k: int) -> TopLogprobs:
        """See `Backend.top_logprobs`."""
        return TopLogprobs(*_native.top_logprobs(self._context, logits, token_ids, k))


class CpuPacking:
    """`Packing` on a thread in C++, which the pool helps from the moment somebody waits."""

    def __init__(self, context: _native.Context, matrices: Sequence[Sequence[MatrixPart]]) -> None:
        self._names = [[part.tensor.name for part in parts] for parts in matrices]
        self._native = _native.Packing(context, [_described(parts) for parts in matrices])

    def matrices(self) -> list[PackedMatrix]:
        """See `Packing.matrices`."""
        while not self._native.help(_PIECES_AT_ONCE):
            pass
        packed = self._native.finish()
        place = self._native.not_finite
        if place is not None:
            raise NotFiniteError(self._names[place[0]][place[1]])
        return list(packed)


class CpuDecoder:
    """`Decoder` in C++: one parallel region for all layers and the head, with a barrier between kernels."""

    def __init__(self, context: _native.Context, weights: DecoderWeights, sizes: DecoderSizes) -> None:
        self._context = context
        self._num_layers = len(weights.layers)
        described = [
            (
                layer.attention_norm,
                _own(layer.qkv),
                layer.qkv_bias,
                layer.q_norm,
                layer.k_norm,
                _own(layer.output),
                layer.output_bias,
                layer.mlp_norm,
                _own(layer.gate_up),
                layer.gate_up_bias,
                _own(layer.down),
                layer.down_bias,
            )
            for layer in weights.layers
        ]
        self._native = _native.Decoder(
            _own(weights.embedding),
            described,
            weights.final_norm,
            _own(weights.head),
            sizes.num_heads,
            sizes.num_kv_heads,
            sizes.head_dim,
            sizes.eps,
            sizes.scale,
        )
        self._bound: tuple[LayerCaches, DecoderBuffers] | None = None

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
        """See `Decoder.forward`. The arrays of `caches` and `buffers` stay the same ones while they are in use."""
        if self._bound is None or self._bound[0] is not caches or self._bound[1] is not buffers:
            self._bind(caches, buffers)
        logits, best, num_words = (None, None, 0) if head is None else (head.logits, head.best, head.num_words)
        self._native.forward(
            self._context,
            token_ids,
            batch.positions,
            batch.slot_mapping,
            batch.block_tables,
            batch.query_start_loc,
            batch.context_lens,
            cos_sin,
            rows,
            logits,
            best,
            num_words,
        )
        return buffers.hidden[: len(token_ids)] if rows is None else buffers.last_hidden[: len(rows)]

    def _bind(self, caches: LayerCaches, buffers: DecoderBuffers) -> None:
        self._native.bind(
            [caches.k_cache(layer) for layer in range(self._num_layers)],
            [caches.v_cache(layer) for layer in range(self._num_layers)],
            buffers.hidden,
            buffers.last_hidden,
            buffers.qkv,
            buffers.attention,
            buffers.last_attention,
            buffers.gate_up,
        )
        self._bound = caches, buffers


def available_instruction_sets() -> tuple[str, ...]:
    """Instruction sets this build carries and this machine can run, best first."""
    return tuple(_native.available_instruction_sets())


def string_starts(data: NDArray[np.uint8], position: int, count: int) -> NDArray[np.int64]:
    """Where strings begin that lie behind one another, each 8 bytes of length and its bytes, counted from `position`.

    The last entry is where the last string ends. Where the data end before that there are at most `count` entries, the
    last of them the last string that starts within the data.
    """
    return _native.string_starts(data, position, count)


def cut_merges(tokens: bytes, is_plain: bytes, lines: bytes, secret: int) -> tuple[NDArray[np.uint64], bytes] | None:
    """Halves of merges, cut at the first space of each line: their characters, left and right in turn, and their bytes.

    `tokens` and `lines` are texts in UTF-8 with a zero byte between two; `is_plain` has a byte a token. None unless
    each line makes, out of two plain tokens, a third. `secret` is a random number below 2**60.
    """
    return _native.cut_merges(tokens, is_plain, lines, secret)


def _described(parts: Sequence[MatrixPart]) -> list[tuple[str, int, int, NDArray[np.uint8], I32 | None]]:
    return [(p.tensor.type, p.tensor.shape[0], p.tensor.shape[1], p.tensor.data, p.row_order) for p in parts]


def _own(matrix: PackedMatrix) -> _native.PackedMatrix:
    if not isinstance(matrix, _native.PackedMatrix):
        raise ValueError(f"matrix: expected one packed by the cpu backend, got {type(matrix).__name__}")
    return matrix
