"""What a probe may ask."""

from typing import Any

import pytest

from foreword.core.errors import InvalidRequestError
from foreword.core.probe import MAX_PROBED_TOKENS, Probe


@pytest.mark.parametrize("fields", [{}, {"token_ids": (1, 1)}, {"token_ids": tuple(range(MAX_PROBED_TOKENS + 1))}])
def test_a_probe_that_asks_nothing_too_much_or_the_same_twice_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="probe"):
        Probe(**fields)
