"""Small types with one meaning each."""

from collections.abc import Collection
from typing import Any, NewType

TokenId = NewType("TokenId", int)
BlockId = NewType("BlockId", int)
SequenceId = NewType("SequenceId", int)
RequestId = NewType("RequestId", str)


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer not below `numerator / denominator`."""
    return -(-numerator // denominator)


def are_token_ids(ids: Collection[Any], vocab_size: int) -> bool:
    """True if all are integers, none of them a bool or of another class, from 0 below `vocab_size`.

    Prompts are long, and a loop of Python over one takes as long as a step of the model: what is done for each token of
    each prompt is done by calls that go over all of them.
    """
    return not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size)
