"""A constraint's mask, read as the ids that it allows."""

import numpy as np

from foreword.core.token_constraint import ConstraintState


def allowed_ids(state: ConstraintState, vocab_size: int) -> list[int]:
    """The tokens that may come next, in ascending order."""
    bits = np.unpackbits(np.frombuffer(state.allowed_tokens, np.uint8), count=vocab_size, bitorder="little")
    found: list[int] = np.flatnonzero(bits).tolist()
    return found
