"""Speculation on the real model: every way to read an answer gives what it gives without."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.smollm2 import SMOLLM2, needs_smollm2

from foreword import LLM, RequestOutput, SamplingParams

pytestmark = needs_smollm2

TEXT = """The lamp room keeps a log. Each evening the keeper writes the hour, the wind and the oil that is left. \
On the third of May he wrote: wind from the north, oil for nine nights, glass cleaned twice. On the fourth he wrote: \
wind from the north, oil for eight nights, glass cleaned once."""
QUESTION = f"Repeat this text word for word:\n\n{TEXT}"
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def models() -> Iterator[tuple[LLM, LLM]]:
    settings: dict[str, Any] = {"max_model_len": 1024, "kv_memory_bytes": 64 << 20, "debug": True}
    with LLM(SMOLLM2, **settings) as plain, LLM(SMOLLM2, speculation="prompt_lookup", **settings) as drafting:
        yield plain, drafting


def seen(output: RequestOutput) -> list[Any]:
    """All of an answer that must not depend on speculation."""
    parts: list[Any] = [output.usage]
    for answer in output.outputs:
        parts += [answer.text, answer.token_ids, answer.finish_reason, answer.stop_reason, answer.logprobs]
    return parts


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 5, "n": 2},
        {"temperature": 0, "stop": ["oil for", "cleaned"]},
        {"temperature": 0, "stop": [" n"], "include_stop_str_in_output": True, "min_tokens": 20},
        {"temperature": 0, "logprobs": 2, "stop": ["May he"]},
        {"temperature": 0.5, "seed": 1, "repetition_penalty": 1.1, "presence_penalty": 0.2},
    ],
)
def test_an_answer_is_the_same_to_the_last_field(models: tuple[LLM, LLM], params: dict[str, Any]) -> None:
    settings = SamplingParams(max_tokens=90, **params)

    answers = []
    for llm in models:
        llm.reset()
        answers.append(llm.chat(MESSAGES, settings)[0])

    assert seen(answers[0]) == seen(answers[1])
    assert models[1].stats().held_blocks == 0


def test_a_quoting_answer_takes_fewer_steps(models: tuple[LLM, LLM]) -> None:
    steps = []
    for llm in models:
        before = llm.stats().num_steps
        llm.chat(MESSAGES, SamplingParams(max_tokens=90, temperature=0))
        steps.append(llm.stats().num_steps - before)

    assert steps[1] < 0.6 * steps[0]


def test_what_comes_after_a_stop_string_is_not_found_by_a_later_prompt(models: tuple[LLM, LLM]) -> None:
    found = []
    for llm in models:
        llm.reset()
        whole = llm.chat(MESSAGES, SamplingParams(max_tokens=90, temperature=0))[0]
        longer = [*whole.prompt_token_ids, *whole.outputs[0].token_ids]
        llm.reset()
        llm.chat(MESSAGES, SamplingParams(max_tokens=90, temperature=0, stop=["oil"]))
        found.append(llm.query({"prompt_token_ids": longer}))

    assert found[0] == found[1] > len(longer) - 90


def test_a_stream_brings_every_token_once_and_in_order(models: tuple[LLM, LLM]) -> None:
    settings = SamplingParams(max_tokens=60, temperature=0)
    whole, pieces = (list(llm.stream(QUESTION, settings)) for llm in models)

    assert [t for delta in whole for t in delta.token_ids] == [t for delta in pieces for t in delta.token_ids]
    assert "".join(delta.text for delta in whole) == "".join(delta.text for delta in pieces)
    assert len(pieces) < len(whole)
