"""Fields that every route of OpenAI's which answers has, and the parameters they make."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from foreword.server.errors import ApiError
from foreword.server.limits import MAX_KWARGS_BYTES, MAX_LOGPROBS

TokenCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=100)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]

_SAMPLING = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "top_k", "min_p"),
    *("repetition_penalty", "ignore_eos"),
)


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat, completions and responses have in common. The second group are vLLM's names."""

    model: str
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None

    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None

    def sampling(self, *more: str) -> dict[str, Any]:
        """What was sent of the fields that say how tokens are drawn, and of those named; others keep their defaults."""
        return {name: value for name in (*_SAMPLING, *more) if (value := getattr(self, name)) is not None}


def check_kwargs(kwargs: dict[str, Any] | None) -> None:
    """Refuse variables for the template that are too large.

    Raises:
        ApiError: 400.
    """
    if kwargs and len(msgspec.json.encode(kwargs)) > MAX_KWARGS_BYTES:
        expected = f"at most {MAX_KWARGS_BYTES} bytes of JSON"
        raise ApiError(400, f"chat_template_kwargs: expected {expected}", "chat_template_kwargs")
