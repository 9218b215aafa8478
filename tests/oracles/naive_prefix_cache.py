"""What a prefix cache must find: a list of everything stored, compared with everything asked."""

from collections.abc import Sequence


def common_prefix_len(a: Sequence[int], b: Sequence[int]) -> int:
    """Equal leading items."""
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


class NaivePrefixCache:
    """Remembers every stored run of tokens, by namespace, for ever."""

    def __init__(self, granularity: int = 1) -> None:
        self.granularity = granularity  # 1: exact to the token; block size: whole blocks only
        self.stored: list[tuple[bytes, list[int]]] = []

    def store(self, namespace: bytes, tokens: Sequence[int]) -> None:
        """Remember a prefix."""
        self.stored.append((namespace, list(tokens)))

    def match(self, namespace: bytes, tokens: Sequence[int], limit: int) -> int:
        """Tokens of the longest stored prefix within the first `limit` tokens."""
        found = [common_prefix_len(run, tokens[:limit]) for name, run in self.stored if name == namespace]
        return max(found, default=0) // self.granularity * self.granularity
