"""Lines of a check-up that hold for any loaded model."""

from collections.abc import Iterator

from foreword.core.finding import Finding
from foreword.llm.loading import LoadSummary


def cache_findings(summary: LoadSummary) -> Iterator[Finding]:
    """Whether K and V are kept, in what, and whether prefixes are found again."""
    if summary.kv_cache:
        yield Finding("KV cache", "ok", f"on, {summary.kv_dtype}")
    else:
        yield Finding("KV cache", "warn", "off: each step computes every token again", "leave out --kv-cache off")
    blocks = f"{summary.num_blocks:,} blocks of {summary.block_size} tokens"
    yield Finding("paging", "ok", f"on, {blocks}, {summary.kv_bytes_per_token:,} bytes a token")
    if summary.prefix_cache == "none":
        yield Finding("prefix cache", "warn", "off: every prompt is read whole", "--prefix-cache radix")
    else:
        yield Finding("prefix cache", "ok", summary.prefix_cache)
