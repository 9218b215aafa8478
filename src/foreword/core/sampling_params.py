"""What a client asks of sampling, validated on creation."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import force_setattr

from foreword.core.errors import InvalidRequestError
from foreword.core.structured_output import StructuredOutput

MAX_N = 16
MAX_LOGPROBS = 20
MAX_BEAM_WIDTH = MAX_LOGPROBS // 2  # twice as many tokens are looked at as beams go on
MAX_LENGTH_PENALTY = 10.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 128
MAX_STOP_LENGTH = 1024
SEED_BITS = 64


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How to choose tokens. Names and meanings follow vLLM's offline API where both have the field.

    `temperature=0` is greedy. A temperature below `1e-4` is treated as 0, since dividing by it overflows.
    `top_k=0` and `top_k=-1` both mean "all tokens". `seed=None` draws a seed when the request is added.
    `structured_output` is the form the answer must have; it comes before `min_tokens` and `ignore_eos`.

    Raises:
        InvalidRequestError: a value is of the wrong type, not finite, or out of its range.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | list[str] | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_output: StructuredOutput | None = None

    def __post_init__(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _integer("seed", self.seed, -(2 ** (SEED_BITS - 1)), 2**SEED_BITS - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, self.max_tokens or 2**31 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(name, "true or false", getattr(self, name))
        if not isinstance(self.structured_output, StructuredOutput | None):
            raise InvalidRequestError("structured_output", "a StructuredOutput", self.structured_output)
        self._check_stops()
        self._check_bias()

    def _check_stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, list | tuple) or len(stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError("stop", f"a string or at most {MAX_STOP_STRINGS} of them", stop)
        for text in stop:
            if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_LENGTH:
                raise InvalidRequestError("stop", f"strings of 1 to {MAX_STOP_LENGTH} characters", text)
        ids = self.stop_token_ids
        if not isinstance(ids, list | tuple) or len(ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequestError("stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} token ids", ids)
        for token in ids:
            _integer("stop_token_ids", token, 0, 2**31 - 1)
        force_setattr(self, "stop", tuple(stop))
        force_setattr(self, "stop_token_ids", tuple(ids))

    def _check_bias(self) -> None:
        bias = self.logit_bias
        if not isinstance(bias, Mapping) or len(bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise InvalidRequestError("logit_bias", f"at most {MAX_LOGIT_BIAS_ENTRIES} entries", bias)
        for token, value in bias.items():
            _integer("logit_bias", token, 0, 2**31 - 1)
            _number(f"logit_bias[{token}]", value, -100.0, 100.0)
        force_setattr(self, "logit_bias", MappingProxyType(dict(bias)))

    @property
    def is_greedy(self) -> bool:
        """True when the highest logit always wins."""
        return self.temperature < 1e-4

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whatever the caller passed."""
        return self.stop  # type: ignore[return-value]  # made a tuple in __post_init__


class BeamSearchParams(Struct, frozen=True, kw_only=True):
    """How to search for the likeliest continuations. Names follow vLLM's offline API where both have the field.

    A beam's score is `cumulative_logprob / length ** length_penalty`. Length counts generated tokens, the end token
    included and the prompt not, as transformers counts (vLLM counts the prompt and not the end token).

    With `early_stopping=False` a search ends once no live beam can come among the `beam_width` best, whatever follows:
    the answer is that of searching on to `max_tokens`. `True` ends it as soon as `beam_width` beams have ended.

    `temperature` exists to be refused: beams are compared by the model's own log-probabilities. So does
    `structured_output`: the likeliest tokens, from which beams are chosen, need not be among those allowed.

    Raises:
        InvalidRequestError: a value is of the wrong type, not finite, or out of its range.
    """

    beam_width: int = 4
    max_tokens: int = 64
    length_penalty: float = 1.0
    ignore_eos: bool = False
    early_stopping: bool = False
    temperature: float = 0.0
    structured_output: None = None

    def __post_init__(self) -> None:
        _integer("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH)
        _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _number("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        for name in ("ignore_eos", "early_stopping"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(name, "true or false", getattr(self, name))
        if isinstance(self.temperature, bool) or self.temperature != 0:
            raise InvalidRequestError(
                "temperature", "0: beams are compared by plain log-probabilities", self.temperature
            )

        if self.structured_output is not None:
            raise InvalidRequestError("structured_output", "none in a beam search", self.structured_output)

    def step_params(self) -> SamplingParams:
        """What each step asks of the sampler: the most likely tokens of each beam, as many as can matter."""
        return SamplingParams(
            temperature=0, max_tokens=self.max_tokens, ignore_eos=self.ignore_eos, logprobs=2 * self.beam_width
        )


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequestError(name, f"an integer from {low} to {high}", value)


def _number(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    expected = f"a number {'above' if low_open else 'from'} {low:g} {'and at most' if low_open else 'to'} {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(name, expected, value)
    if not math.isfinite(value) or not low <= value <= high or (low_open and value == low):
        raise InvalidRequestError(name, expected, value)
