"""How many tokens requests hold: one length, several, or a distribution from a file."""

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from msgspec import Struct

from foreword.core.errors import ForewordError, InvalidRequestError

MAX_LENGTH = 100_000_000
MAX_LINES = 10_000_000
_MAX_LINE = 4096


class Lengths(Struct, frozen=True):
    """Lengths in stored tokens, ascending, with how often each comes."""

    counts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Self:
        """Each as often as it is named.

        Raises:
            InvalidRequestError: none, or one out of range.
        """
        return cls.counted(Counter(lengths))

    @classmethod
    def counted(cls, counts: Counter[int]) -> Self:
        """From a count a length; the same errors."""
        counts = +counts  # a length that comes no times is none
        for length in counts:
            if not 1 <= length <= MAX_LENGTH:
                raise InvalidRequestError("context", f"tokens from 1 to {MAX_LENGTH}", length)
        if not counts:
            raise InvalidRequestError("context", "at least one length", "none")
        return cls(tuple(sorted(counts.items())))

    @property
    def total(self) -> int:
        """How many requests the distribution is of."""
        return sum(count for _, count in self.counts)

    @property
    def mean(self) -> float:
        """Average length."""
        return sum(length * count for length, count in self.counts) / self.total

    @property
    def longest(self) -> int:
        """The longest length."""
        return self.counts[-1][0]

    def percentile(self, share: float) -> int:
        """The smallest length that at least this share of requests does not exceed (nearest rank)."""
        seen = itertools.accumulate(count for _, count in self.counts)
        needed = share * self.total
        return next(length for (length, _), so_far in zip(self.counts, seen, strict=True) if so_far >= needed)


def read_lengths(path: Path) -> Lengths:
    """A distribution from a text file: one length a line, or `length,count`; lines that begin with # are remarks.

    Raises:
        ForewordError: the file can't be read.
        InvalidRequestError: a line holds something else; names the line.
    """
    counts: Counter[int] = Counter()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number in range(1, MAX_LINES + 2):
                line = file.readline(_MAX_LINE)
                if not line:
                    break
                _count(counts, line.strip(), f"lengths, line {number}")
            else:
                raise InvalidRequestError("lengths", f"at most {MAX_LINES:,} lines", "more")
    except OSError as error:
        raise ForewordError(f"lengths: {path}: {(error.strerror or 'cannot be read').lower()}") from None
    return Lengths.counted(counts)


def _count(counts: Counter[int], line: str, where: str) -> None:
    if not line or line.startswith("#"):
        return
    length, _, count = (part.strip() for part in line.partition(","))
    if not (length.isdecimal() and len(length) <= 12 and (not count or (count.isdecimal() and len(count) <= 12))):
        raise InvalidRequestError(where, "a number of tokens, or tokens,count", line)
    counts[int(length)] += int(count or 1)
