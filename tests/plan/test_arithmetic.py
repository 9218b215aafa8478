"""Lengths, sharing, what fits: laws of the arithmetic."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.plan.draw import bars
from foreword.plan.geometry import Geometry, LayerKV, StoredAs, uniform
from foreword.plan.lengths import Lengths, read_lengths
from foreword.plan.plan import ENGINE_OVERHEAD, STORED_AS, Plan, PlanDtype, PlanOptions, make_plan

SHAPE = uniform(name="", layers=2, heads=4, kv_heads=2, head_dim=8)
TOKEN = 2 * 2 * 2 * (2 * 8 + 4)  # bytes of one: layers, K and V, heads, codes of int16 and a scale
ONE = StoredAs(1)  # bytes are elements
LATENT = Geometry(
    name="",
    layers=(LayerKV(k=64, v=0, heads=1),) * 3,
    num_heads=4,
    num_kv_heads=4,
    head_dim=24,
    value_dim=16,
    is_latent=True,
)


def planned(memory: int, lengths: list[int], geometry: Geometry = SHAPE, **options: int) -> Plan:
    return make_plan(
        geometry,
        PlanOptions(
            memory_bytes=ENGINE_OVERHEAD + memory,
            lengths=Lengths.of(lengths),
            weight_bytes=0,
            **options,  # type: ignore[arg-type]
        ),
    )


def held_one_by_one(geometry: Geometry, tokens: int, block_size: int, sharers: int, prefix: int) -> int:
    """Elements held by `sharers` requests, found by handing out blocks one at a time: the oracle."""
    held = 0
    for layer in geometry.layers:
        blocks: set[tuple[int, int]] = set()
        for request in range(sharers):
            for position in range(tokens):
                if layer.window is not None and position < tokens - layer.window:
                    continue
                index = position // block_size
                is_shared = layer.window is None and (index + 1) * block_size <= prefix
                blocks.add((-1 if is_shared else request, index))
        held += len(blocks) * block_size * (layer.k + layer.v)
    return held


@given(
    windows=st.lists(st.none() | st.integers(1, 40), min_size=1, max_size=4),
    tokens=st.integers(1, 100),
    block_size=st.integers(1, 20),
    sharers=st.integers(1, 4),
    share=st.floats(0, 1),
)
def test_blocks_are_those_a_pool_would_hand_out(
    windows: list[int | None], tokens: int, block_size: int, sharers: int, share: float
) -> None:
    layers = tuple(LayerKV(k=3, v=2, heads=1, window=window) for window in windows)
    geometry = Geometry(name="", layers=layers, num_heads=1, num_kv_heads=1, head_dim=3, value_dim=2)
    prefix = int(tokens * share)
    whole = prefix // block_size

    found = geometry.shared_bytes(ONE, block_size, whole) + sharers * geometry.block_bytes(
        ONE, tokens, block_size, whole
    )

    exact = held_one_by_one(geometry, tokens, block_size, sharers, prefix)
    # A window's worst case is planned: it may touch one block more than it does at just this length.
    slack = sharers * block_size * 5 * sum(window is not None for window in windows)
    assert exact <= found <= exact + slack
    if all(window is None for window in windows):
        assert found == exact


@pytest.mark.parametrize(
    ("geometry", "kv_dtype", "expected"),
    [
        (SHAPE, "f16", 2 * 2 * 2 * 8 * 2),
        (SHAPE, "int8", 2 * 2 * 2 * (8 + 4)),  # layers, K and V, heads, codes and a scale
        (SHAPE, "int16", 2 * 2 * 2 * (2 * 8 + 4)),
        (SHAPE, "f8", 2 * 2 * 2 * 8),
        (LATENT, "int8", 3 * (64 + 4)),
        (LATENT, "f32", 3 * 64 * 4),
    ],
)
def test_a_scale_is_counted_for_each_vector(geometry: Geometry, kv_dtype: PlanDtype, expected: int) -> None:
    options = PlanOptions(memory_bytes=2**30, lengths=Lengths.of([10]), kv_dtype=kv_dtype)
    plan = make_plan(geometry, options)

    assert plan.bytes_per_token == expected
    assert plan.block_bytes == 16 * expected
    assert plan.requests[0].exact_bytes == 10 * expected


@example(memory=2048, tokens=16, n=1, prefix=16)  # nothing is a request's own
@given(memory=st.integers(0, 10**7), tokens=st.integers(1, 3000), n=st.integers(1, 50), prefix=st.integers(0, 3000))
def test_the_most_that_fits_does_and_one_more_does_not(memory: int, tokens: int, n: int, prefix: int) -> None:
    prefix = min(prefix, tokens)
    plan = planned(memory, [tokens], shared_prefix=prefix, concurrency=(n,))  # type: ignore[arg-type]
    (row,) = plan.concurrency
    (request,) = plan.requests

    assert plan.most_paged * request.paged_bytes <= memory < (plan.most_paged + 1) * request.paged_bytes
    assert plan.most_shared >= plan.most_paged
    assert row.fits == (n <= plan.most_shared or row.shared_bytes <= memory)
    assert row.saved_bytes == (n - 1) * (prefix // 16) * 16 * TOKEN
    if row.max_context:
        bigger = planned(memory, [row.max_context], shared_prefix=min(prefix, row.max_context), concurrency=(n,))  # type: ignore[arg-type]
        assert bigger.concurrency[0].fits


def test_paging_reserves_what_is_used() -> None:
    plan = planned(1_000_000, [100], reserve=4000)

    assert plan.most_contiguous == 1_000_000 // (4000 * TOKEN)
    assert plan.most_paged == 1_000_000 // (112 * TOKEN)
    assert plan.reserve_tokens == 4000


def test_a_distribution_is_planned_by_its_mean_and_shown_by_percentiles() -> None:
    lengths = Lengths.of([16 * n for n in range(1, 101)])
    plan = make_plan(SHAPE, PlanOptions(memory_bytes=ENGINE_OVERHEAD + 10**6, lengths=lengths, concurrency=(10,)))

    assert [row.tokens for row in plan.requests] == [800, 1440, 1520, 1584, 1600]
    assert plan.concurrency[0].paged_bytes == 10 * lengths.mean * TOKEN
    assert plan.most_longest == 10**6 // (1600 * TOKEN)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.floats(0.01, 1))
def test_percentiles_are_the_nearest_rank(lengths: list[int], share: float) -> None:
    ordered = sorted(lengths)

    assert Lengths.of(lengths).percentile(share) == ordered[max(0, math.ceil(share * len(lengths)) - 1)]
    assert Lengths.of(lengths).mean == pytest.approx(sum(lengths) / len(lengths))


def test_lengths_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("# tokens,count\n512,3\n\n 100 \n512\n")

    assert read_lengths(path).counts == ((100, 1), (512, 4))


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "x\n", "1.5\n", "-3\n", "5,x\n", "0\n", "9" * 5000, "100000001\n", "5,0\n"]
)
def test_malformed_lengths_get_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)

    with pytest.raises(InvalidRequestError):
        read_lengths(path)


def test_a_file_of_lengths_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ForewordError, match="no such file"):
        read_lengths(tmp_path / "no.csv")


def test_weights_may_leave_nothing(tmp_path: Path) -> None:
    plan = make_plan(SHAPE, PlanOptions(memory_bytes=100, lengths=Lengths.of([10]), weight_bytes=2**40))

    assert (plan.kv_budget_bytes, plan.most_paged, plan.most_shared, plan.concurrency[0].max_context) == (0, 0, 0, 0)
    assert not plan.concurrency[0].fits
    assert all("no memory is left" in line for line in bars(plan))
    assert "nothing is left for K and V" in plan.notes[-1]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("memory", {"memory_bytes": 0}),
        ("concurrency", {"concurrency": ()}),
        ("concurrency", {"concurrency": (0,)}),
        ("kv_dtype", {"kv_dtype": "int3"}),
        ("block_size", {"block_size": 0}),
        ("shared_prefix", {"shared_prefix": 11}),
        ("shared_prefix", {"shared_prefix": -1}),
        ("max_model_len", {"reserve": 0}),
    ],
)
def test_wishes_out_of_range(field: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field}:"):
        PlanOptions(**{"memory_bytes": 1, "lengths": Lengths.of([10]), **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("kv_dtype", STORED_AS)
def test_an_odd_block_is_refused_for_codes_alone(kv_dtype: PlanDtype) -> None:
    wanted: dict[str, Any] = {"memory_bytes": 1, "lengths": Lengths.of([10]), "block_size": 15, "kv_dtype": kv_dtype}

    if STORED_AS[kv_dtype].scale:
        said = f"^block_size: expected an even number, since codes of {kv_dtype} lie in pairs .*any\\), got 15$"
        with pytest.raises(InvalidRequestError, match=said):
            PlanOptions(**wanted)
    else:
        assert PlanOptions(**wanted).block_size == 15


@pytest.mark.parametrize("sizes", [(0, 4, 2, 8), (2, 0, 1, 8), (2, 4, 3, 8), (2, 4, 0, 8), (2, 4, 8, 8), (2, 4, 2, 0)])
def test_shapes_out_of_range(sizes: tuple[int, int, int, int]) -> None:
    layers, heads, kv_heads, head_dim = sizes
    with pytest.raises(InvalidRequestError):
        uniform(name="", layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
