"""Bad settings give one line that names the field; good ones are kept."""

import math

import pytest

from foreword.core.errors import InvalidRequestError
from foreword.core.sampling_params import SamplingParams

NUMBERS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", True, None, [], 1e400, -3, 2**64])
def test_absurd_numbers_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]

    assert caught.value.field == name
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 17, 1_000_000, "3", 2.5, True, None, math.nan])
def test_n_is_bounded(value: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"^n: expected an integer from 1 to 16"):
        SamplingParams(n=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 21, 100_000, 1.5, "2", True])
def test_logprobs_are_bounded(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]

    assert caught.value.field == name


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
        ("seed", {"seed": 2**64}),
        ("seed", {"seed": 1.0}),
        ("stop", {"stop": [""]}),
        ("stop", {"stop": ["x"] * 17}),
        ("stop", {"stop": 3}),
        ("stop", {"stop": ["x" * 1025]}),
        ("stop_token_ids", {"stop_token_ids": [-1]}),
        ("stop_token_ids", {"stop_token_ids": "12"}),
        ("logit_bias", {"logit_bias": {-1: 0.0}}),
        ("logit_bias", {"logit_bias": {i: 0.0 for i in range(1025)}}),
        ("logit_bias[3]", {"logit_bias": {3: math.nan}}),
        ("logit_bias[3]", {"logit_bias": {3: 1e9}}),
        ("ignore_eos", {"ignore_eos": 1}),
        ("skip_special_tokens", {"skip_special_tokens": "no"}),
    ],
)
def test_other_bad_settings_name_their_field(field: str, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**arguments)  # type: ignore[arg-type]

    assert caught.value.field == field


def test_stops_become_tuples_and_the_bias_a_copy_nobody_can_change() -> None:
    bias = {1: 2.0}

    params = SamplingParams(stop="end", stop_token_ids=[7], logit_bias=bias)
    bias[1] = 50.0

    assert params.stop_strings == ("end",)
    assert params.stop_token_ids == (7,)
    assert params.logit_bias == {1: 2.0}
    with pytest.raises(TypeError):
        params.logit_bias[1] = 0.0  # type: ignore[index]


def test_a_very_small_temperature_is_greedy() -> None:
    assert SamplingParams(temperature=1e-320).is_greedy
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=0.001).is_greedy
