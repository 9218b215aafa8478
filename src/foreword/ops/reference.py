"""The oracle: every kernel in plain NumPy, row by row, slow and obvious.

It follows the rules of design 4 literally. Sums over K run in one order per row, because a matrix product's rounding
may change with its height; attention walks keys in fixed tiles from position 0. Other backends may differ from this
one by a derived tolerance, never from themselves.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from foreword.ops.backend import (
    F32,
    I32,
    AttentionBatch,
    DecoderSizes,
    DecoderWeights,
    KVArray,
    PackedMatrix,
    SamplingBatch,
    TopLogprobs,
)
from foreword.ops.kv_layout import KVParts, copy_blocks, key_parts, value_parts
from foreword.ops.late_packing import LatePacking
from foreword.ops.raw_tensor import PACKED_EXACTLY, MatrixPart

GROUP = 32  # inputs that share one scale, of weights and of rounded activations
ATTENTION_TILE = 128  # keys reduced together, counted from position 0
CODE_LENGTH = 32767  # of a query that meets codes, and of an int16 key: the root of the sum of its codes' squares
# Of the codes of a tile's weights: the largest, at most, and their sum, and the least step.
MOST_WEIGHT, MOST_WEIGHTS, LEAST_STEP = np.float32(32767), np.float32(262000), np.float32(2.0**-126)
GREEDY_BELOW = 1e-4  # temperatures under this choose the highest logit


class ReferenceMatrix(Struct, frozen=True, eq=False):
    """Weights as f32 values, and the output rows whose activations are rounded to int8 first."""

    values: F32  # [rows, cols]
    rounds_activations: NDArray[np.bool_]  # [rows]

    @property
    def rows(self) -> int:
        """Outputs."""
        return len(self.values)

    @property
    def cols(self) -> int:
        """Inputs."""
        return int(self.values.shape[1])

    @property
    def num_bytes(self) -> int:
        """Memory of the values."""
        return self.values.nbytes


class ReferenceBackend:
    """`Backend` in NumPy."""

    name = "reference"
    instruction_set = "numpy"
    num_threads = 1

    def pack_matrix(self, parts: Sequence[MatrixPart]) -> ReferenceMatrix:
        """See `Backend.pack_matrix`."""
        if not parts:
            raise ValueError("parts: expected at least one, got none")
        values, rounds = [], []
        for part in parts:
            tensor = part.tensor
            if tensor.type not in PACKED_EXACTLY:
                raise ValueError(f"{tensor.name}: expected a type of {', '.join(PACKED_EXACTLY)}, got {tensor.type}")
            rows = _dequantise(tensor.data, tensor.type, tensor.shape)
            if part.row_order is not None:
                rows = rows[part.row_order]
            values.append(rows)
            rounds.append(np.full(len(rows), tensor.type.startswith("Q")))
        if len({v.shape[1] for v in values}) != 1:
            raise ValueError(f"parts: expected one number of inputs, got {[v.shape[1] for v in values]}")
        return ReferenceMatrix(np.concatenate(values), np.concatenate(rounds))

    def begin_packing(self, matrices: Sequence[Sequence[MatrixPart]]) -> LatePacking:
        """See `Backend.begin_packing`."""
        return LatePacking(self, matrices)

    def embed(self, table: PackedMatrix, token_ids: I32, out: F32) -> None:
        """See `Backend.embed`."""
        out[:] = _own(table).values[token_ids]

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None:
        """See `Backend.rms_norm`."""
        for t in range(len(x)):
            out[t] = _rms_norm_row(x[t], weight, eps)

    def linear(
        self, x: F32, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None, accumulate: bool = False
    ) -> None:
        """See `Backend.linear`."""
        own = _own(matrix)
        quantised = own.rounds_activations
        for t in range(len(x)):
            row = np.zeros(own.rows, np.float32)
            if quantised.any():
                row[quantised] = _product_row(_round_to_int8(x[t]), own.values[quantised])
            if not quantised.all():
                row[~quantised] = _product_row(x[t], own.values[~quantised])
            if bias is not None:
                row = row + bias
            out[t] = out[t] + row if accumulate else row

    def norm_linear(
        self, x: F32, norm_weight: F32, eps: float, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None
    ) -> None:
        """See `Backend.norm_linear`."""
        normed = np.empty(x.shape, np.float32)
        self.rms_norm(x, norm_weight, eps, normed)
        self.linear(normed, matrix, out, bias=bias)

    def swiglu_linear(
        self, gate_up: F32, matrix: PackedMatrix, out: F32, *, bias: F32 | None = None, accumulate: bool = False
    ) -> None:
        """See `Backend.swiglu_linear`."""
        half = gate_up.shape[1] // 2
        gate, up = gate_up[:, :half], gate_up[:, half:]
        with np.errstate(over="ignore"):  # exp(-gate) may be infinite; the quotient is then 0, as it should be
            activated = gate / (1 + np.exp(-gate)) * up
        self.linear(activated, matrix, out, bias=bias, accumulate=accumulate)

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
        keys, values = key_parts(k_cache), value_parts(v_cache)
        num_kv_heads, (block_size, head_dim) = keys.elements.shape[1], keys.places.shape
        for t, (position, slot) in enumerate(zip(batch.positions, batch.slot_mapping, strict=True)):
            heads = qkv[t].reshape(-1, head_dim)
            num_heads = len(heads) - 2 * num_kv_heads
            rotated_keys = np.empty((num_kv_heads, head_dim), np.float32)
            for h in range(num_heads + num_kv_heads):
                norm = q_norm if h < num_heads else k_norm
                head = heads[h] if norm is None else _rms_norm_row(heads[h], norm, eps)
                rotated = _rotate(head, cos_sin[position])
                if h < num_heads:
                    heads[h] = rotated
                else:
                    rotated_keys[h - num_heads] = rotated
            place = divmod(int(slot), block_size)
            _store(keys, place, rotated_keys, by_length=k_cache.dtype == np.int16)
            _store(values, place, heads[num_heads + num_kv_heads :], by_length=False)

    def paged_attention(
        self, qkv: F32, batch: AttentionBatch, k_cache: KVArray, v_cache: KVArray, scale: float, out: F32
    ) -> None:
        """See `Backend.paged_attention`."""
        stored_keys, stored_values = key_parts(k_cache), value_parts(v_cache)
        num_kv_heads, (block_size, head_dim) = stored_keys.elements.shape[1], stored_keys.places.shape
        num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
        attend = _attend if stored_keys.scales is None else _attend_codes
        for s, table in enumerate(batch.block_tables):
            first, last = batch.query_start_loc[s], batch.query_start_loc[s + 1]
            for t in range(first, last):
                length = int(batch.context_lens[s]) - (last - t) + 1
                places = [(int(table[p // block_size]), p % block_size) for p in range(length)]
                keys, values = _load(stored_keys, places), _load(stored_values, places)
                for h in range(num_heads):
                    j = h // (num_heads // num_kv_heads)
                    query = qkv[t, h * head_dim : (h + 1) * head_dim]
                    row = attend(query, keys.of_head(j), values.of_head(j), np.float32(scale))
                    out[t, h * head_dim : (h + 1) * head_dim] = row

    def copy_blocks(self, k_cache: KVArray, v_cache: KVArray, sources: I32, destinations: I32) -> None:
        """See `Backend.copy_blocks`."""
        copy_blocks(k_cache, v_cache, sources, destinations)

    def decoder(self, weights: DecoderWeights, sizes: DecoderSizes) -> None:
        """See `Backend.decoder`: there is none, kernel by kernel is what this backend is for."""

    def sample(self, logits: F32, batch: SamplingBatch) -> I32:
        """See `Backend.sample`."""
        tokens = np.empty(len(logits), np.int32)
        for r, row in enumerate(logits):
            row = np.where(np.isnan(row), -np.inf, row)
            if batch.temperature[r] < GREEDY_BELOW:
                tokens[r] = np.argmax(row)
                continue
            u = uniform_at(int(batch.seed[r]), int(batch.sequence_index[r]), int(batch.position[r]))
            filters = (int(batch.top_k[r]), float(batch.top_p[r]), float(batch.min_p[r]))
            tokens[r] = _draw(row, float(batch.temperature[r]), filters, u)
        return tokens

    def top_logprobs(self, logits: F32, token_ids: I32, k: int) -> TopLogprobs:
        """See `Backend.top_logprobs`."""
        rows = logits.astype(np.float64)
        peak = rows.max(axis=1, keepdims=True)
        log_softmax = rows - peak - np.log(np.exp(rows - peak).sum(axis=1, keepdims=True))
        chosen = np.arange(len(rows)), token_ids
        order = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        return TopLogprobs(
            logprobs=log_softmax[chosen].astype(np.float32),
            ranks=(1 + (logits > logits[chosen][:, None]).sum(axis=1)).astype(np.int32),
            top_ids=order.astype(np.int32),
            top_logprobs=np.take_along_axis(log_softmax, order, axis=1).astype(np.float32),
        )


def uniform_at(seed: int, sequence_index: int, position: int) -> float:
    """The draw in `[0, 1)` of one position: Philox 4x32-10, counter-based, so no draw depends on another.

    Source   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    counter = [sequence_index, position, 0, 0]
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 1 << 32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return float(((counter[1] << 32 | counter[0]) >> 11) * 2.0**-53)


def _own(matrix: PackedMatrix) -> ReferenceMatrix:
    if not isinstance(matrix, ReferenceMatrix):
        raise ValueError(f"matrix: expected one packed by the reference backend, got {type(matrix).__name__}")
    return matrix


def _dequantise(data: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> F32:
    from gguf import GGMLQuantizationType  # not above: it takes a tenth of a second, and every start imports this file
    from gguf.quants import dequantize

    values = dequantize(data.reshape(shape[0], -1), GGMLQuantizationType[kind])
    return np.ascontiguousarray(values, np.float32).reshape(shape)


def _round_to_int8(row: F32) -> F32:
    """Round a row to 8 bits per group of 32; returned as the f32 values the integers stand for."""
    groups = row.reshape(-1, GROUP)
    peak = np.abs(groups).max(axis=1, keepdims=True)
    scale = peak / np.float32(127)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    return np.asarray(np.rint(groups * inverse) * scale, np.float32).reshape(-1)


def _product_row(row: F32, weights: F32) -> F32:
    # Summed in double: the oracle is the exact value, rounded once.
    return np.asarray((weights.astype(np.float64) * row.astype(np.float64)).sum(axis=1), np.float32)


def _rms_norm_row(row: F32, weight: F32, eps: float) -> F32:
    mean_square = np.mean(row.astype(np.float64) ** 2)
    return np.asarray(row * np.float32(1 / np.sqrt(mean_square + eps)) * weight, np.float32)


def _rotate(head: F32, cos_sin: F32) -> F32:
    half = len(head) // 2
    cos, sin = cos_sin[:half], cos_sin[half:]
    first, second = head[:half], head[half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin])


class _Stored(NamedTuple):
    """Elements `[P, J, D]` of P positions, or `[P, D]` of one head, and scales `[P, J]`, or `[P]`, of codes."""

    elements: NDArray[Any]
    scales: F32 | None

    def of_head(self, j: int) -> "_Stored":
        return _Stored(self.elements[:, j], None if self.scales is None else self.scales[:, j])


def _load(parts: KVParts, places: Sequence[tuple[int, int]]) -> _Stored:
    """What is stored at each block and offset."""
    elements = np.stack([parts.read(*place) for place in places])
    if parts.scales is None:
        return _Stored(elements.astype(np.float32), None)
    return _Stored(elements, np.stack([parts.scales[block, :, offset] for block, offset in places]))


def _store(parts: KVParts, place: tuple[int, int], heads: F32, *, by_length: bool) -> None:
    """Round the heads `[J, D]` of one token, each once, and write them to its block and offset."""
    if parts.scales is None:
        parts.write(*place, heads)
        return
    most = 127 if parts.elements.dtype == np.int8 else 8191
    rounded = [_codes_by_length(head) if by_length else _codes_by_peak(head, np.float32(most)) for head in heads]
    parts.write(*place, np.stack([codes for codes, _ in rounded]))
    parts.scales[place[0], :, place[1]] = [scale for _, scale in rounded]


def _codes_by_peak(head: F32, most: np.float32) -> tuple[NDArray[np.int16], np.float32]:
    """Codes of a head and their one scale: the largest magnitude is `most`. What is not finite makes the scale NaN."""
    none = np.zeros(len(head), np.int16)
    peak = np.abs(head).max()
    if not np.isfinite(peak):
        return none, np.float32(np.nan)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = most / peak
    if not np.isfinite(inverse):  # all of it is as good as 0
        return none, np.float32(0)
    return np.rint(head * inverse).astype(np.int16), peak / most


def _codes_by_length(head: F32) -> tuple[NDArray[np.int16], np.float32]:
    """Codes of a head, whose squares sum up to 32767 squared, and their scale; the rest as `_codes_by_peak`."""
    none = np.zeros(len(head), np.int16)
    lanes = [0.0] * 8
    for d, value in enumerate(head.astype(np.float64)):
        lanes[d % 8] += value * value  # exact
    square = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
    if not np.isfinite(square):
        return none, np.float32(np.nan)
    length = math.sqrt(square)
    if length * float(np.finfo(np.float32).max) < CODE_LENGTH:  # all of it is as good as 0
        return none, np.float32(0)
    return np.rint(head * np.float32(CODE_LENGTH / length)).astype(np.int16), np.float32(length / CODE_LENGTH)


def _attend(query: F32, keys: _Stored, values: _Stored, scale: np.float32) -> F32:
    """One query over its keys: softmax of each tile, tiles merged in ascending order."""
    tiles = []
    for tile in _tiles(len(keys.elements)):
        scores = (keys.elements[tile] * query).sum(axis=1) * scale
        weights = np.exp(scores - scores.max())
        tiles.append((scores.max(), weights.sum(), (weights[:, None] * values.elements[tile]).sum(axis=0)))
    return _merge(tiles)


def _attend_codes(query: F32, keys: _Stored, values: _Stored, scale: np.float32) -> F32:
    """The same where keys and values are codes: so are the query then, and the weights times the values' scales."""
    assert keys.scales is not None
    assert values.scales is not None
    query_codes, query_scale = _codes_by_length(query)
    tiles = []
    for tile in _tiles(len(keys.elements)):
        sums = (keys.elements[tile].astype(np.int64) * query_codes).sum(axis=1)
        scores = sums.astype(np.float32) * keys.scales[tile] * (query_scale * scale)
        weights = np.exp(scores - scores.max())
        scaled = weights * values.scales[tile]
        # NaN where one is
        step = np.maximum(LEAST_STEP, np.maximum(scaled.max() / MOST_WEIGHT, scaled.sum() / MOST_WEIGHTS))
        codes = np.rint(scaled / step if np.isfinite(step) else np.zeros_like(scaled)).astype(np.int64)
        summed = (codes[:, None] * values.elements[tile]).sum(axis=0).astype(np.float32) * step
        tiles.append((scores.max(), weights.sum(), summed))
    return _merge(tiles)


def _tiles(num_keys: int) -> Iterator[slice]:
    return (slice(start, start + ATTENTION_TILE) for start in range(0, num_keys, ATTENTION_TILE))


def _merge(tiles: Sequence[tuple[np.float32, np.float32, F32]]) -> F32:
    """Peak, sum of weights and weighted values of each tile become one row."""
    peak, total, summed = np.float32(-np.inf), np.float32(0), np.float32(0) * tiles[0][2]
    for tile_peak, tile_total, tile_sum in tiles:
        new_peak = max(peak, tile_peak)
        old_share, tile_share = np.exp(peak - new_peak), np.exp(tile_peak - new_peak)
        total = total * old_share + tile_total * tile_share
        summed = summed * old_share + tile_sum * tile_share
        peak = new_peak
    return np.asarray(summed / total, np.float32)


def _draw(row: F32, temperature: float, filters: tuple[int, float, float], u: float) -> int:
    top_k, top_p, min_p = filters
    scaled = row.astype(np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    if top_k <= 0 and top_p >= 1 and min_p <= 0:
        kept = np.arange(len(row))
    else:
        kept = np.argsort(-row, kind="stable")
        if top_k > 0:
            kept = kept[:top_k]
        share = probabilities[kept] / probabilities[kept].sum()
        kept = kept[: int(np.searchsorted(np.cumsum(share), top_p)) + 1]
        floor = min_p * probabilities[kept[0]]
        kept = kept[: max(1, int((probabilities[kept] >= floor).sum()))]
    running = np.cumsum(probabilities[kept])
    index = int(np.searchsorted(running, u * running[-1], side="right"))
    return int(kept[min(index, len(kept) - 1)])
