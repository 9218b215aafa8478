"""Which retention policy keeps the right prefixes?

Question   block hit rate of each policy on the Mooncake traces at 3k, 10k and 30k blocks, beside the optimum.
Regime     none: hits are counted, not timed.
Ideal      Belady's rule on blocks, children first.
Run        python -m benchmarks.kv_cache.bench_retention   (needs the traces beside the project)
"""

import json

from tests.oracles.block_trace import count_hits, count_optimal_hits, load_mooncake

from foreword.kv_cache.retention_policy import POLICIES


def main() -> None:
    rows = []
    for name in ("conversation", "synthetic"):
        trace = load_mooncake(name)
        total = sum(map(len, trace))
        for num_blocks in (3_000, 10_000, 30_000):
            row: dict[str, object] = {"trace": name, "num_blocks": num_blocks}
            row["optimal"] = count_optimal_hits(trace, num_blocks) / total
            row |= {policy: count_hits(trace, "radix", num_blocks, policy) / total for policy in POLICIES}
            print(
                "  ".join(
                    f"{key} {value:.3f}" if isinstance(value, float) else f"{value}" for key, value in row.items()
                )
            )
            rows.append(row)
    print(json.dumps({"benchmark": "retention", "rows": rows}))


if __name__ == "__main__":
    main()
