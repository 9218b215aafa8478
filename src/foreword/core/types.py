"""Small types with one meaning each."""

from typing import NewType

TokenId = NewType("TokenId", int)
BlockId = NewType("BlockId", int)
SequenceId = NewType("SequenceId", int)
RequestId = NewType("RequestId", str)


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer not below `numerator / denominator`."""
    return -(-numerator // denominator)
