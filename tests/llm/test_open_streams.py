"""Calls made while a stream is open: each gets what is its own, and nothing waits for what never comes."""

from collections.abc import Callable, Iterator

import pytest
from tests.smollm2 import SMOLLM2, needs_smollm2

from foreword import LLM, BeamSearchParams, InvalidRequestError, SamplingParams, TextDelta

pytestmark = needs_smollm2

FIRST, SECOND = "The capital of France is", "Once upon a time"
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(SMOLLM2, max_model_len=256, kv_memory_bytes=32 << 20, max_num_seqs=8) as llm:
        yield llm


def impatient() -> Callable[..., None]:
    """A progress that gives up on a call which takes far more steps than it can need."""
    steps = 0

    def progress(**_: int) -> None:
        nonlocal steps
        steps += 1
        assert steps < 100, "the call does not end"

    return progress


def alone(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> list[int]:
    return llm.generate(prompt, params)[0].outputs[0].token_ids


def tokens(deltas: list[TextDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.parametrize(
    "other",
    [
        lambda llm: llm.generate(SECOND, GREEDY),
        lambda llm: llm.warm("A prompt to be stored for later, long enough to fill a block or two of the pool."),
        lambda llm: llm.beam_search(SECOND, BeamSearchParams(beam_width=2, max_tokens=4)),
    ],
    ids=["generate", "warm", "beam_search"],
)
def test_a_call_made_while_a_stream_is_open_takes_nothing_from_it(llm: LLM, other: Callable[[LLM], object]) -> None:
    expected = alone(llm, FIRST)
    stream = llm.stream(FIRST, GREEDY, progress=impatient())

    begun = [next(stream), next(stream)]
    other(llm)

    assert tokens(begun + list(stream)) == expected
    llm.check_invariants()


def test_two_streams_read_in_turn_each_give_their_own_answer(llm: LLM) -> None:
    expected = [alone(llm, FIRST), alone(llm, SECOND)]
    streams = [llm.stream(prompt, GREEDY, progress=impatient()) for prompt in (FIRST, SECOND)]

    pairs = list(zip(*streams, strict=True))

    assert [tokens([pair[side] for pair in pairs]) for side in (0, 1)] == expected


def test_a_stop_string_ends_a_stream_that_another_call_moves_on(llm: LLM) -> None:
    text = llm.generate(FIRST, GREEDY)[0].outputs[0].text
    stopping = SamplingParams(temperature=0, max_tokens=12, stop=text[8:11])
    stream = llm.stream(FIRST, stopping, progress=impatient())

    begun = next(stream)
    llm.generate(SECOND, GREEDY)
    deltas = [begun, *stream]

    assert "".join(delta.text for delta in deltas) == text[: text.index(text[8:11])]
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].output.usage.completion_tokens == len(tokens(deltas))


def test_a_progress_may_make_calls_of_its_own(llm: LLM) -> None:
    expected = alone(llm, FIRST)
    steps = impatient()

    def progress(**counts: int) -> None:
        steps()
        llm.generate(SECOND, SamplingParams(temperature=0, max_tokens=2))

    assert llm.generate(FIRST, GREEDY, progress=progress)[0].outputs[0].token_ids == expected


def test_closing_the_model_ends_its_open_streams() -> None:
    with LLM(SMOLLM2, max_model_len=64, kv_memory_bytes=8 << 20) as llm:
        stream = llm.stream([FIRST, SECOND], GREEDY, progress=impatient())
        last = next(stream)

    rest = list(stream)

    assert len(rest) <= 1  # the other prompt's token of the same step
    assert [answer.finish_reason for answer in last.output.outputs] == ["abort"]


@pytest.mark.parametrize("params", ["greedy", 5, {"temperature": 0}, [None]])
def test_sampling_params_of_another_kind_are_refused_by_name(llm: LLM, params: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"^sampling_params: "):
        llm.generate(FIRST, params)  # type: ignore[arg-type]  # what is tested
