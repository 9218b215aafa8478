"""Places at which a prompt may be cut, and where they lie among its tokens."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from foreword.core.errors import InvalidRequestError
from foreword.core.sequence import Lease
from foreword.server.errors import ApiError

LIFETIMES_S = {"5m": 300, "in_memory": 300, "30m": 1800, "1h": 3600, "12h": 43_200, "24h": 86_400}


class CachePoint(Struct, frozen=True):
    """The end of a piece of content. `ttl` is of an explicit breakpoint there; None where there is none."""

    beginning: Callable[[], Sequence[int]]
    """Token ids of the prompt if it ended there, without what begins an answer."""
    kind: str
    ttl: str | None = None
    is_message_end: bool = False


class PointMap:
    """Positions of points among a prompt's tokens, each found when it is first asked for.

    A point lies where the prompt and its beginning part: nothing behind it is part of what they share. Where the
    template refuses a prompt that ends there, it is taken to lie at 0. Cost: a rendering and a tokenising each.
    """

    def __init__(self, points: Sequence[CachePoint], token_ids: Sequence[int]) -> None:
        self.points = points
        self.token_ids = token_ids
        self._positions: dict[int, int] = {}

    def position(self, index: int) -> int:
        """Tokens in front of the end of a piece."""
        found = self._positions.get(index)
        if found is None:
            found = self._positions[index] = self._find(self.points[index])
        return found

    def _find(self, point: CachePoint) -> int:
        try:
            beginning = point.beginning()
        except (ApiError, InvalidRequestError):
            return 0
        return common_length(beginning, self.token_ids)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Leading tokens that two prompts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def lease(num_tokens: int, ttl: str) -> Lease:
    """What a lifetime in a provider's words asks of the engine."""
    return Lease(num_tokens, LIFETIMES_S[ttl] * 1000)
