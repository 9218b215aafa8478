"""The arithmetic: bytes a token, a request, a number of requests at once, and what fits.

A length here counts *stored* tokens. A request of P prompt tokens and G generated ones stores P + G - 1: the last
token's K and V are never needed.
"""

import math
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import asdict

from foreword.core.config import KV_DTYPE_BYTES, KV_SCALE_BYTES, check_pairs
from foreword.core.errors import InvalidRequestError
from foreword.core.types import ceil_div
from foreword.plan.geometry import Geometry, StoredAs
from foreword.plan.lengths import MAX_LENGTH, Lengths

PlanDtype = Literal["f32", "f16", "int16", "int8", "bf16", "f8"]
STORED_AS: dict[PlanDtype, StoredAs] = {
    **{name: StoredAs(size, KV_SCALE_BYTES[name]) for name, size in KV_DTYPE_BYTES.items()},
    "bf16": StoredAs(2),
    "f8": StoredAs(1),
}
ENGINE_OVERHEAD = 90 << 20
"""Interpreter, libraries, tokenizer and scratch memory of a foreword process that reads text: 20 MiB more than
tests/llm/test_memory.py allows one that reads ids."""
WEIGHT_BYTES_A_PARAMETER = 2  # f16 or bf16, where no file says otherwise


class PlanOptions(Struct, frozen=True, kw_only=True):
    """What is planned for. `memory_bytes` is for everything: weights, the process, K and V.

    Raises:
        InvalidRequestError: a value is out of range.
    """

    memory_bytes: int
    lengths: Lengths
    concurrency: tuple[int, ...] = (1, 4, 16, 64)
    kv_dtype: PlanDtype = "int16"
    block_size: int = 16
    shared_prefix: int = 0  # leading tokens that all requests have in common
    weight_bytes: int | None = None  # instead of what the files say
    reserve: int | None = None  # tokens a contiguous cache reserves a request; None: the model's longest

    def __post_init__(self) -> None:
        if self.memory_bytes < 1:
            raise InvalidRequestError("memory", "at least one byte", self.memory_bytes)
        if not self.concurrency or not all(1 <= n <= 10_000_000 for n in self.concurrency):
            raise InvalidRequestError("concurrency", "numbers from 1 to 10000000", self.concurrency)
        if self.kv_dtype not in STORED_AS:
            raise InvalidRequestError("kv_dtype", " or ".join(STORED_AS), self.kv_dtype)
        if not 1 <= self.block_size <= 4096:
            raise InvalidRequestError("block_size", "tokens from 1 to 4096", self.block_size)
        if self.stored.scale:
            check_pairs("block_size", self.block_size, self.kv_dtype)
        shortest = self.lengths.counts[0][0]
        if not 0 <= self.shared_prefix <= shortest:
            raise InvalidRequestError(
                "shared_prefix", f"tokens from 0 to the shortest context ({shortest})", self.shared_prefix
            )
        if self.reserve is not None and not 1 <= self.reserve <= MAX_LENGTH:
            raise InvalidRequestError("max_model_len", f"tokens from 1 to {MAX_LENGTH}", self.reserve)

    @property
    def stored(self) -> StoredAs:
        """What K and V take."""
        return STORED_AS[self.kv_dtype]


class RequestRow(Struct, frozen=True):
    """One length: bytes of one request's K and V."""

    tokens: int
    blocks: int
    exact_bytes: int  # to the token, after windows
    paged_bytes: int  # whole blocks
    contiguous_bytes: int  # reserved for the longest request there may be
    without_gqa_bytes: int  # had each query head its own K and V
    with_q_bytes: int  # K and V as they are, were Q stored too


class ConcurrencyRow(Struct, frozen=True):
    """So many requests at once, at the mean of the lengths."""

    requests: int
    paged_bytes: int
    shared_bytes: int  # with the common prefix held once
    saved_bytes: int  # by sharing
    contiguous_bytes: int
    fits: bool  # what is shared, beside weights and process
    num_blocks: int  # what the engine's pool needs for it
    max_context: int  # longest context of each, were they all the same length; 0: not one token


class Plan(Struct, frozen=True):
    """Everything that was worked out, in bytes."""

    geometry: Geometry
    options: PlanOptions
    weight_bytes: int
    weights_from: str
    bytes_per_token: int
    without_gqa_bytes_per_token: int
    query_bytes_per_token: int
    block_bytes: int
    kv_budget_bytes: int  # 0 where weights and process take all
    reserve_tokens: int
    requests: tuple[RequestRow, ...]
    concurrency: tuple[ConcurrencyRow, ...]
    most_paged: int  # requests at once that fit, at the mean of the lengths
    most_shared: int
    most_contiguous: int
    most_longest: int  # paged, were all as long as the longest
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, object]:
        """For machines: every number in bytes or tokens."""
        options, geometry = self.options, self.geometry
        return {
            "model": geometry.name,
            "attention": geometry.attention,
            "layers": len(geometry.layers),
            "heads": geometry.num_heads,
            "kv_heads": geometry.num_kv_heads,
            "head_dim": geometry.head_dim,
            "kv_dtype": options.kv_dtype,
            "block_size": options.block_size,
            "memory_bytes": options.memory_bytes,
            "weight_bytes": self.weight_bytes,
            "weights_from": self.weights_from,
            "overhead_bytes": ENGINE_OVERHEAD,
            "kv_budget_bytes": self.kv_budget_bytes,
            "bytes_per_token": self.bytes_per_token,
            "without_gqa_bytes_per_token": self.without_gqa_bytes_per_token,
            "query_bytes_per_token": self.query_bytes_per_token,
            "block_bytes": self.block_bytes,
            "shared_prefix": options.shared_prefix,
            "reserve_tokens": self.reserve_tokens,
            "requests": [asdict(row) for row in self.requests],
            "concurrency": [asdict(row) for row in self.concurrency],
            "most_requests": {
                "paged": self.most_paged,
                "shared": self.most_shared,
                "contiguous": self.most_contiguous,
                "paged_all_longest": self.most_longest,
            },
            "notes": list(self.notes),
        }


def make_plan(geometry: Geometry, options: PlanOptions) -> Plan:
    """Work out everything for one model and one set of wishes. Cost: O(distinct lengths · layers)."""
    weight_bytes, weights_from, notes = _weights(geometry, options)
    stored = options.stored
    budget = max(0, options.memory_bytes - weight_bytes - ENGINE_OVERHEAD)
    reserve = options.reserve or max(geometry.max_position or 0, options.lengths.longest)
    paged, beside_prefix, prefix = _mean_bytes(geometry, options)
    longest = geometry.block_bytes(stored, options.lengths.longest, options.block_size)
    contiguous = geometry.token_bytes(stored) * reserve  # a window is no reason for a smaller array there
    most_paged = math.floor(budget / paged)
    # Sharing never takes a block more; where it leaves a request none of its own, that is all that can be promised.
    most_shared = max(most_paged, math.floor((budget - prefix) / beside_prefix)) if beside_prefix else most_paged
    if not budget:
        notes += ("weights and process take all of the memory: nothing is left for K and V",)
    if geometry.max_position is not None and options.lengths.longest > geometry.max_position:
        notes += (f"contexts reach beyond the model's {geometry.max_position:,} tokens",)
    return Plan(
        geometry=geometry,
        options=options,
        weight_bytes=weight_bytes,
        weights_from=weights_from,
        bytes_per_token=geometry.token_bytes(stored),
        without_gqa_bytes_per_token=geometry.unshared_bytes(stored),
        query_bytes_per_token=geometry.query_bytes(stored),
        block_bytes=geometry.token_bytes(stored) * options.block_size,
        kv_budget_bytes=budget,
        reserve_tokens=reserve,
        requests=tuple(_request_row(geometry, options, tokens, contiguous) for tokens in _shown(options.lengths)),
        concurrency=tuple(
            _concurrency_row(geometry, options, n, (paged, beside_prefix, prefix, contiguous), budget)
            for n in options.concurrency
        ),
        most_paged=most_paged,
        most_shared=most_shared,
        most_contiguous=budget // contiguous,
        most_longest=budget // longest,
        notes=geometry.notes + notes,
    )


def _weights(geometry: Geometry, options: PlanOptions) -> tuple[int, str, tuple[str, ...]]:
    if options.weight_bytes is not None:
        return options.weight_bytes, "as given", ()
    if geometry.weight_bytes is not None:
        return geometry.weight_bytes, "as the file holds them", ()
    if geometry.num_parameters is not None:
        said = f"{geometry.num_parameters:,} parameters of {WEIGHT_BYTES_A_PARAMETER} bytes"
        return geometry.num_parameters * WEIGHT_BYTES_A_PARAMETER, said, ()
    return 0, "not known", ("weights are not known and count as nothing: give their size with --weights",)


def _mean_bytes(geometry: Geometry, options: PlanOptions) -> tuple[float, float, int]:
    """Bytes of an average request: alone; beside a shared prefix; and of that prefix, held once."""
    stored, block = options.stored, options.block_size
    shared = options.shared_prefix // block  # a block that is shared in part is copied
    alone = beside = 0
    for tokens, count in options.lengths.counts:
        alone += count * geometry.block_bytes(stored, tokens, block)
        beside += count * geometry.block_bytes(stored, tokens, block, shared)
    total = options.lengths.total
    return alone / total, beside / total, geometry.shared_bytes(stored, block, shared)


def _shown(lengths: Lengths) -> list[int]:
    """Every length where they are few, and the usual percentiles of a distribution."""
    if len(lengths.counts) <= 8:
        return [tokens for tokens, _ in lengths.counts]
    return list(dict.fromkeys(lengths.percentile(share) for share in (0.5, 0.9, 0.95, 0.99, 1.0)))


def _request_row(geometry: Geometry, options: PlanOptions, tokens: int, contiguous: int) -> RequestRow:
    stored = options.stored
    exact = geometry.kept_bytes(stored, tokens)
    return RequestRow(
        tokens=tokens,
        blocks=ceil_div(tokens, options.block_size),
        exact_bytes=exact,
        paged_bytes=geometry.block_bytes(stored, tokens, options.block_size),
        contiguous_bytes=contiguous,
        without_gqa_bytes=geometry.unshared_bytes(stored) * tokens,
        with_q_bytes=exact + geometry.query_bytes(stored) * tokens,
    )


def _concurrency_row(
    geometry: Geometry, options: PlanOptions, n: int, each: tuple[float, float, int, int], budget: int
) -> ConcurrencyRow:
    paged, beside_prefix, prefix, contiguous = each
    paged_bytes, shared_bytes = math.ceil(n * paged), prefix + math.ceil(n * beside_prefix)
    block_bytes = geometry.token_bytes(options.stored) * options.block_size
    return ConcurrencyRow(
        requests=n,
        paged_bytes=paged_bytes,
        shared_bytes=shared_bytes,
        saved_bytes=paged_bytes - shared_bytes,
        contiguous_bytes=n * contiguous,
        fits=shared_bytes <= budget,
        num_blocks=ceil_div(shared_bytes, block_bytes),
        max_context=_longest_context(geometry, options, n, budget),
    )


def _longest_context(geometry: Geometry, options: PlanOptions, n: int, budget: int) -> int:
    """The longest context that `n` requests of the same length can have, by bisection: bytes never fall with length."""
    stored, block = options.stored, options.block_size

    def fits(tokens: int) -> bool:
        shared = min(options.shared_prefix, tokens) // block
        each = geometry.block_bytes(stored, tokens, block, shared)
        return geometry.shared_bytes(stored, block, shared) + n * each <= budget

    low, high = 0, geometry.max_position or MAX_LENGTH
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
