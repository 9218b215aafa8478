"""Drafts: exact whatever is guessed, never in anybody's way, and only where they pay."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.config import CacheConfig, PrefixCacheKind, SchedulerConfig
from foreword.core.errors import InvalidRequestError, InvariantError
from foreword.core.outputs import SampledToken
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import FinishReason, Sequence
from foreword.core.types import SequenceId, TokenId
from foreword.scheduler.speculation import MAX_DRAFTS, PromptLookupSpeculation
from tests.oracles.engine import SimulatedEngine, make_request
from tests.oracles.simulated_model import sequential_generate
from tests.scheduler.test_scheduler import assert_exact


def make_engine(
    num_blocks: int = 64, *, guesses: bool = True, prefix_cache: PrefixCacheKind = "radix", **config: object
) -> SimulatedEngine:
    settings = {"max_num_seqs": 8, "token_budget": 64, "max_model_len": 256, **config}
    cache = CacheConfig(num_blocks=num_blocks, block_size=8, debug=True, prefix_cache=prefix_cache)
    return SimulatedEngine(cache, SchedulerConfig(**settings), guesses=guesses)  # type: ignore[arg-type]


def drafted(engine: SimulatedEngine) -> list[int]:
    """Drafts of each scheduled sequence of each step."""
    return [scheduled.num_drafts for output in engine.outputs for scheduled in output.sequences]


class Repeater:
    """Says one token again and again."""

    def __init__(self, token: int, learned: list[list[int]]) -> None:
        self.token, self.learned = TokenId(token), learned

    def propose(self, sequence: Sequence, most: int, num_tokens: int) -> list[TokenId]:
        return [self.token] * most

    def learn(self, sequence_id: SequenceId, drawn: list[TokenId]) -> None:
        self.learned.append(list(drawn))

    def forget(self, sequence_id: SequenceId) -> None:
        self.learned.append([])


def test_fewer_steps_and_the_same_tokens() -> None:
    plain, drafting = make_engine(guesses=False), make_engine()
    for engine in (plain, drafting):
        request = engine.add(range(9), max_tokens=60)
        engine.run()
        assert_exact(engine, request)
        assert request.sequences[0].usage.completion_tokens == 60

    counters = drafting.scheduler.counters
    assert len(drafting.outputs) < 40 < len(plain.outputs)
    assert 60 - (len(drafting.outputs) - 1) <= counters.accepted_tokens + 1
    assert counters.drafted_tokens == sum(drafted(drafting)) > counters.accepted_tokens > 0
    assert counters.sampled_tokens == plain.scheduler.counters.sampled_tokens == 60
    rejected = counters.drafted_tokens - counters.accepted_tokens
    kinds = counters.prefilled_tokens + counters.decoded_tokens + counters.recomputed_tokens
    assert counters.computed_tokens == kinds + rejected
    assert kinds == plain.scheduler.counters.computed_tokens


@given(
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    max_tokens=st.integers(1, 40),
    n=st.integers(1, 2),
    num_blocks=st.integers(10, 30),
    budget=st.sampled_from([1, 3, 16, 64]),
    prefix_cache=st.sampled_from(["radix", "hash", "none"]),
    eos=st.lists(st.integers(0, 6), max_size=1),
    guesses=st.sampled_from([True, True, False]),
)
def test_every_answer_is_that_of_plain_decoding(
    prompts: list[int],
    max_tokens: int,
    n: int,
    num_blocks: int,
    budget: int,
    prefix_cache: PrefixCacheKind,
    eos: list[int],
    guesses: bool,
) -> None:
    answers = []
    configs: list[dict[str, Any]] = [{"guesses": guesses, "speculation": "prompt_lookup"}, {"guesses": False}]
    for config in configs:
        engine = make_engine(
            num_blocks,
            prefix_cache=prefix_cache,
            token_budget=budget,
            max_model_len=80,
            **config,
        )
        requests = [
            engine.add([i % 3] * length, max_tokens=max_tokens, n=n, eos=eos) for i, length in enumerate(prompts)
        ]
        engine.run()
        sequences = [sequence for request in requests for sequence in request.sequences]
        answers.append([(s.token_ids, s.finish_reason, s.usage.completion_tokens) for s in sequences])
        engine.manager.reset()
        assert engine.manager.pool.num_free == num_blocks

    assert answers[0] == answers[1]


def test_a_draft_takes_only_what_nobody_else_needs() -> None:
    engine = make_engine(num_blocks=9, prefix_cache="none", token_budget=9)
    first = engine.add([1] * 8, max_tokens=40)
    engine.step()
    second = engine.add([2] * 17, max_tokens=8)
    engine.run()

    assert_exact(engine, first)
    assert_exact(engine, second)
    assert engine.scheduler.counters.num_preemptions == 0
    assert max(drafted(engine)) > 0
    while_prefilling = [output for output in engine.outputs if any(len(s.token_ids) > 8 for s in output.sequences)]
    assert all(output.num_tokens <= 9 for output in while_prefilling)


def test_drafts_stop_one_token_short_of_the_end() -> None:
    engine = make_engine()
    request = engine.add([1] * 8, max_tokens=4)
    engine.run()

    assert max(drafted(engine)) <= 1
    assert request.sequences[0].finish_reason is FinishReason.LENGTH
    assert_exact(engine, request)


def test_an_end_token_within_a_run_is_drawn_once_more_alone() -> None:
    prompt = list(range(9))
    told = sequential_generate(b"", prompt, 40, 0, 7)
    ends = [next(place for place in range(12, 40) if told[place] == token) for token in range(7) if token in told[12:]]
    for place in ends:
        engine = make_engine()
        request = engine.add(prompt, max_tokens=100, min_tokens=13, eos=[told[place]])
        steps = []
        while engine.scheduler.has_unfinished:
            steps += engine.step()

        sequence = request.sequences[0]
        assert sequence.token_ids[9:] == told[: place + 1]
        assert sequence.finish_reason is FinishReason.STOP
        assert len(steps[-1].new_tokens) == 1
        assert sum(len(step.new_tokens) for step in steps) == sequence.usage.completion_tokens


def test_who_reads_the_text_ends_a_sequence_in_the_middle_of_a_run_and_no_trace_is_left() -> None:
    prompt = list(range(9))
    told = sequential_generate(b"", prompt, 40, 0, 7)
    for kept in range(2, 30):
        plain, drafting = make_engine(guesses=False), make_engine()
        for engine in (plain, drafting):
            request = engine.add(prompt, max_tokens=100)
            sequence = request.sequences[0]
            while sequence.num_output_tokens < kept:
                engine.step()
            engine.scheduler.finish(sequence.sequence_id, FinishReason.STOP, kept)
            engine.scheduler.check_invariants()
            assert sequence.token_ids[9:] == told[:kept]
            assert sequence.usage.completion_tokens == engine.scheduler.counters.sampled_tokens == kept
        asked = [*prompt, *told]
        found = [e.manager.query(b"", [TokenId(t) for t in asked]) for e in (plain, drafting)]
        assert found[0] == found[1] == 9 + kept - 1


def test_a_stop_token_is_told() -> None:
    prompt = list(range(9))
    told = sequential_generate(b"", prompt, 20, 0, 7)
    engine = make_engine()
    request = engine.add(prompt, max_tokens=100, min_tokens=15, stop_token_ids=[told[16]])
    engine.run()

    assert request.sequences[0].stop_token_id == told[16]


def test_beams_constrained_answers_and_prompts_alone_are_not_drafted_for() -> None:
    engine = make_engine()
    engine.choose = lambda beam: [1] if beam.num_output_tokens < 5 else []
    engine.add([1] * 9, max_tokens=20, branches=True)
    engine.add([2] * 9, prefill_only=True)
    constrained = make_request("c", 50, [3] * 9, engine.requests["r0"].params)
    constrained.constraint = object()  # type: ignore[assignment]  # only its presence counts here
    engine.scheduler.add(constrained)
    engine.requests["c"] = constrained
    engine.runner.start(SequenceId(50), b"", 0, constrained.prompt_token_ids)
    engine.run()

    assert set(drafted(engine)) == {0}


def test_the_naive_loop_has_no_use_for_drafts() -> None:
    engine = make_engine(guesses=False, speculation="prompt_lookup", recompute_all=True, prefix_cache="none")
    request = engine.add([1, 2] * 8, max_tokens=20)
    engine.run()

    assert_exact(engine, request)
    assert set(drafted(engine)) == {0}


def test_a_step_with_too_few_draws_is_refused_and_nothing_changes() -> None:
    engine = make_engine()
    request = engine.add(range(9), max_tokens=60)
    while not (output := engine.schedule()) or not output.sequences[0].num_drafts:
        assert output is not None
        engine.complete(output)

    with pytest.raises(InvariantError, match="not every token"):
        engine.scheduler.update(output, {SequenceId(0): (SampledToken(TokenId(1)),)})

    engine.complete(output)
    engine.run()
    assert_exact(engine, request)


def test_a_failed_step_leaves_no_draft_behind() -> None:
    engine = make_engine()
    request = engine.add(range(9), max_tokens=40)
    failed = 0
    while engine.scheduler.has_unfinished:
        output = engine.schedule()
        assert output is not None
        if output.sequences[0].num_drafts and failed < 5:
            failed += 1
            engine.scheduler.discard(output)
        else:
            engine.complete(output)

    assert failed == 5
    assert_exact(engine, request)


def test_what_is_refused_and_what_is_told_to_the_guesser() -> None:
    with pytest.raises(InvalidRequestError, match="speculation"):
        SchedulerConfig(speculation="magic")  # type: ignore[arg-type]
    learned: list[list[int]] = []
    engine = make_engine(guesses=False)
    engine.scheduler._drafting._speculation = Repeater(3, learned)
    request = engine.add(range(9), max_tokens=30)
    engine.run()

    assert_exact(engine, request)
    assert learned[-1] == []
    assert [token for run in learned for token in run] == request.sequences[0].token_ids[9:]


# -- when it pays --------------------------------------------------------------------------------------------------


def sequence_of(tokens: list[int], number: int = 0) -> Sequence:
    return make_request("r", number, tokens, SamplingParams(max_tokens=1000)).sequences[0]


def decode(speculation: PromptLookupSpeculation, prompt: list[int], answer: list[int], load: int = 1) -> list[int]:
    """Drafts proposed in each step of a sequence that says `answer`, in steps of `load` tokens."""
    sequence = sequence_of(prompt)
    counts = []
    said = 0
    while said < len(answer):
        drafts = speculation.propose(sequence, min(MAX_DRAFTS, len(answer) - said - 1), load)
        counts.append(len(drafts))
        right = 0
        while right < len(drafts) and drafts[right] == answer[said + right]:
            right += 1
        run = [TokenId(token) for token in answer[said : said + right + 1]]
        speculation.learn(sequence.sequence_id, run)
        sequence.token_ids += run
        said += len(run)
    return counts


def test_a_quotation_takes_few_steps() -> None:
    document = [(17 * i) % 1009 for i in range(400)]

    counts = decode(PromptLookupSpeculation(), document, document[100:300])

    assert len(counts) < 40
    assert max(counts) == MAX_DRAFTS


def test_who_never_repeats_is_never_drafted_for() -> None:
    counts = decode(PromptLookupSpeculation(), list(range(100)), list(range(1000, 1200)))

    assert counts == [0] * 200


def test_wrong_guesses_are_given_up_and_taken_up_again_once_they_would_be_right() -> None:
    prompt = [token for i in range(50) for token in (7, 8, 9, 100 + i)]
    misleading = [token for i in range(60) for token in (7, 8, 9, 500 + i)]
    speculation = PromptLookupSpeculation()

    counts = decode(speculation, prompt, misleading)
    wrong = sum(counts[-20:])
    quoted = decode(PromptLookupSpeculation(), prompt + misleading, prompt)

    assert wrong <= 20 * 3  # the run 7 8 9 itself comes true, what follows it never does
    assert sum(quoted) > 0


def test_the_fuller_a_step_the_surer_a_draft_must_be() -> None:
    document = [(17 * i) % 1009 for i in range(400)]
    totals = [sum(decode(PromptLookupSpeculation(), document, document[100:130], load)) for load in (1, 16, 100, 1000)]

    assert totals[0] >= totals[1] >= totals[2] >= totals[3] == 0
    assert totals[1] > 0


def test_sequences_are_learned_of_apart_and_forgotten() -> None:
    speculation = PromptLookupSpeculation()
    decode(speculation, [1, 2, 3] * 10, [1, 2, 3] * 10)
    assert list(speculation._drafters) == [SequenceId(0)]

    speculation.forget(SequenceId(0))
    speculation.forget(SequenceId(0))
    speculation.learn(SequenceId(0), [TokenId(1)])

    assert not speculation._drafters
