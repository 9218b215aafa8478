"""What can be asked of the place where a prompt ends, when no token is to be drawn there."""

from array import array

from msgspec import Struct

from foreword.core.errors import InvalidRequestError

MAX_PROBED_TOKENS = 128


class Probe(Struct, frozen=True, kw_only=True):
    """What to read behind a prompt's last token: how likely given tokens come next, or the hidden state there.

    Raises:
        InvalidRequestError: nothing is asked, or more tokens than `MAX_PROBED_TOKENS`, or the same one twice.
    """

    token_ids: tuple[int, ...] = ()
    hidden_state: bool = False

    def __post_init__(self) -> None:
        if not self.token_ids and not self.hidden_state:
            raise InvalidRequestError("probe", "token ids, or the hidden state", "neither")
        if len(self.token_ids) > MAX_PROBED_TOKENS or len(set(self.token_ids)) != len(self.token_ids):
            raise InvalidRequestError("probe", f"at most {MAX_PROBED_TOKENS} different token ids", self.token_ids)


class Reading(Struct, frozen=True, kw_only=True):
    """What a probe found.

    `logprobs` are natural logarithms, in the order of `Probe.token_ids`. `hidden_state` is the last layer's output
    after the final norm, `[hidden_size]` f32.
    """

    logprobs: tuple[float, ...] = ()
    hidden_state: "array[float] | None" = None
