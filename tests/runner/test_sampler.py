"""Penalties, bias, draws and logprobs, each against its definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from foreword.core.outputs import SamplingRow
from foreword.core.sampling_params import SamplingParams
from foreword.core.types import TokenId
from foreword.ops.reference import ReferenceBackend, uniform_at
from foreword.runner.sampler import Sampler

VOCAB = 50


def make_row(
    params: SamplingParams, *, prompt: list[int] | None = None, output: list[int] | None = None
) -> SamplingRow:
    prompt = prompt or [1]
    return SamplingRow(params, params.seed or 0, 0, [TokenId(t) for t in prompt + (output or [])], len(prompt))


def random_logits(seed: int, rows: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32)


def draw(params: SamplingParams, logits: NDArray[np.float32], **history: list[int]) -> int:
    return Sampler(ReferenceBackend()).sample(logits.copy(), [make_row(params, **history)])[0].token_id


@given(st.integers(0, 1000))
def test_greedy_takes_the_highest_logit(seed: int) -> None:
    logits = random_logits(seed)

    assert draw(SamplingParams(temperature=0), logits) == int(logits.argmax())


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    logits = random_logits(3)

    assert draw(SamplingParams(temperature=1e-9), logits) == int(logits.argmax())


@given(st.integers(0, 200), st.integers(0, 2**63))
def test_a_row_draws_the_same_token_in_any_batch(seed: int, chosen: int) -> None:
    logits = random_logits(seed, rows=4)
    params = SamplingParams(temperature=1.3, top_p=0.9, seed=chosen)
    rows = [make_row(params, output=[2] * i) for i in range(4)]
    sampler = Sampler(ReferenceBackend())

    together = [t.token_id for t in sampler.sample(logits.copy(), rows)]

    alone = [sampler.sample(logits[i : i + 1].copy(), rows[i : i + 1])[0].token_id for i in range(4)]
    assert together == alone


def test_draws_follow_the_softmax() -> None:
    logits = random_logits(1)
    sampler = Sampler(ReferenceBackend())
    params = SamplingParams(temperature=0.8)
    scaled = logits[0].astype(np.float64) / 0.8
    expected = np.exp(scaled - scaled.max()) / np.exp(scaled - scaled.max()).sum()
    num_draws = 4000

    rows = [SamplingRow(params, 7, i, [TokenId(1)], 1) for i in range(num_draws)]
    tokens = [t.token_id for t in sampler.sample(np.repeat(logits, num_draws, axis=0), rows)]

    share = np.bincount(tokens, minlength=VOCAB) / num_draws
    assert np.abs(share - expected).max() < 5 * math.sqrt(0.25 / num_draws)


@given(st.integers(0, 500), st.integers(1, 10))
def test_top_k_keeps_the_k_largest(seed: int, k: int) -> None:
    logits = random_logits(seed)

    token = draw(SamplingParams(temperature=2.0, top_k=k, seed=seed), logits)

    assert token in np.argsort(-logits[0], kind="stable")[:k]


@given(st.integers(0, 500), st.floats(0.05, 1.0))
def test_top_p_keeps_the_shortest_run_that_reaches_p(seed: int, p: float) -> None:
    logits = random_logits(seed)
    order = np.argsort(-logits[0], kind="stable")
    probabilities = np.exp(logits[0].astype(np.float64))[order]
    running = np.cumsum(probabilities / probabilities.sum())

    token = draw(SamplingParams(temperature=1.0, top_p=p, seed=seed), logits)

    place = order.tolist().index(token)
    assert place == 0 or running[place - 1] < p


@given(st.integers(0, 500), st.floats(0.0, 1.0))
def test_min_p_keeps_what_is_likely_enough_beside_the_best(seed: int, share: float) -> None:
    logits = random_logits(seed)

    token = draw(SamplingParams(temperature=1.0, min_p=share, seed=seed), logits)

    assert np.exp(float(logits[0, token]) - float(logits.max())) >= share * (1 - 1e-9)


def test_repetition_penalty_lowers_every_seen_token() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 5], logits[0, 6], logits[0, 7] = 4.0, 3.0, -1.0

    assert draw(SamplingParams(temperature=0, repetition_penalty=2.0), logits, prompt=[5], output=[7]) == 6


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 5], logits[0, 6] = 2.0, 1.5
    params = SamplingParams(temperature=0, presence_penalty=0.4, frequency_penalty=0.2)

    assert draw(params, logits, prompt=[5, 5, 5]) == 5
    assert draw(params, logits, prompt=[1], output=[5]) == 6


@pytest.mark.parametrize(("bias", "expected"), [({9: 100.0}, 9), ({0: -100.0}, 1)])
def test_logit_bias_moves_the_choice(bias: dict[int, float], expected: int) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 0], logits[0, 1] = 2.0, 1.0

    assert draw(SamplingParams(temperature=0, logit_bias=bias), logits) == expected


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 3] = 50.0
    row = SamplingRow(SamplingParams(temperature=0), 0, 0, [TokenId(1)], 1, forbidden_token_ids=(TokenId(3),))

    assert Sampler(ReferenceBackend()).sample(logits, [row])[0].token_id == 0


def test_logprobs_are_the_models_own_whatever_the_penalties() -> None:
    logits = random_logits(11)
    exact = logits[0].astype(np.float64)
    exact = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    params = SamplingParams(temperature=0.5, logprobs=3, seed=1, logit_bias={0: 100.0})

    sampled = Sampler(ReferenceBackend()).sample(logits.copy(), [make_row(params)])[0]

    assert sampled.token_id == 0
    assert sampled.logprobs is not None
    best = np.argsort(-exact, kind="stable")[:3].tolist()
    assert list(sampled.logprobs) == list(dict.fromkeys([0, *best]))
    for token, found in sampled.logprobs.items():
        assert found.logprob == pytest.approx(exact[token], abs=1e-6)
        assert found.rank == 1 + int((exact > exact[token]).sum())


def test_philox_gives_the_published_words() -> None:
    # Known answers of Random123 for philox4x32-10 with counter and key 0: 6627e8d5 e169c58d …
    assert uniform_at(0, 0, 0) == ((0xE169C58D << 32 | 0x6627E8D5) >> 11) * 2.0**-53


@given(st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=5, unique=True), min_size=1, max_size=6))
def test_logprobs_of_given_tokens_are_those_of_log_softmax_in_any_company(token_ids: list[list[int]]) -> None:
    logits = random_logits(5, rows=len(token_ids))
    sampler = Sampler(ReferenceBackend())

    found = sampler.logprobs_of(logits, token_ids)

    for row, ids, values in zip(logits.astype(np.float64), token_ids, found, strict=True):
        expected = row[ids] - np.log(np.exp(row).sum())
        assert np.allclose(values, expected, atol=1e-5)
    alone = [sampler.logprobs_of(logits[r : r + 1], [ids])[0] for r, ids in enumerate(token_ids)]
    assert found == alone
