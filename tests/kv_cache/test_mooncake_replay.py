"""Published traces, shrunk to 16-token blocks: the number of hits is known exactly."""

import pytest

from foreword.core.config import PrefixCacheKind
from tests.oracles.block_trace import DATA, count_hits, count_optimal_hits, load_mooncake

pytestmark = pytest.mark.skipif(not (DATA / "mooncake").is_dir(), reason="no Mooncake traces beside the project")

TRACES = [("conversation", 288_500, 105_710), ("synthetic", 121_877, 77_953)]


@pytest.mark.parametrize("kind", ["hash", "radix"])
@pytest.mark.parametrize(("name", "total", "hits"), TRACES)
def test_a_large_pool_hits_exactly_the_blocks_seen_before(
    name: str, total: int, hits: int, kind: PrefixCacheKind
) -> None:
    trace = load_mooncake(name)

    assert sum(map(len, trace)) == total
    assert count_hits(trace, kind, 200_000) == hits


def test_the_default_policy_is_no_worse_than_least_recently_used() -> None:
    trace = load_mooncake("synthetic")

    lru, default = count_hits(trace, "radix", 10_000, "lru"), count_hits(trace, "radix", 10_000)

    assert lru <= default <= count_optimal_hits(trace, 10_000)
