"""Who holds how much of something that is bounded: one owner may hold no more than stays free for the others."""

from collections import Counter


class Shares:
    """What each owner holds; an owner without a name is everybody, and has no share."""

    def __init__(self) -> None:
        self.total = 0
        self._held: Counter[bytes] = Counter()

    def of(self, owner: bytes) -> int:
        """What one owner holds."""
        return self._held[owner]

    def add(self, owner: bytes, by: int) -> None:
        """So much more, or less."""
        self.total += by
        self._held[owner] += by
        if not self._held[owner]:
            del self._held[owner]

    def has_share(self, owner: bytes, free: int) -> bool:
        """Whether an owner holds as much as stays free, or more."""
        return bool(owner) and self._held[owner] >= free
