"""The scheduler on a simulated model: exact outputs, exact counts, and every way to end."""

import pytest

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import CapacityError, InvalidRequestError, InvariantError, QueueFullError
from foreword.core.probe import Probe
from foreword.core.sequence import FinishReason, Request
from foreword.core.types import RequestId, SequenceId, TokenId
from tests.oracles.engine import SimulatedEngine, make_request
from tests.oracles.simulated_model import sequential_generate


def make_engine(num_blocks: int = 64, block_size: int = 8, **config: object) -> SimulatedEngine:
    settings = {"max_num_seqs": 8, "token_budget": 32, "max_model_len": 256, **config}
    cache = CacheConfig(num_blocks=num_blocks, block_size=block_size, debug=True)
    return SimulatedEngine(cache, SchedulerConfig(**settings))  # type: ignore[arg-type]


def assert_exact(engine: SimulatedEngine, request: Request) -> None:
    for sequence in request.sequences:
        got = sequence.token_ids[sequence.prompt_len :]
        want = sequential_generate(request.namespace, request.prompt_token_ids, len(got), sequence.index, 7)
        assert got == want


def test_one_request_generates_what_a_plain_loop_generates() -> None:
    engine = make_engine()
    request = engine.add(range(21), max_tokens=30)

    engine.run()

    assert_exact(engine, request)
    assert request.sequences[0].finish_reason is FinishReason.LENGTH
    assert engine.manager.pool.num_free == 64


def test_the_naive_loop_computes_104950_tokens_for_1000_plus_100_and_the_cached_way_1099() -> None:
    computed = {}
    for recompute_all in (False, True):
        engine = make_engine(
            num_blocks=80, block_size=16, token_budget=512, max_model_len=1100, recompute_all=recompute_all
        )
        request = engine.add([1] * 1000, max_tokens=100)
        engine.run()
        computed[recompute_all] = engine.scheduler.counters.computed_tokens
        assert_exact(engine, request)
        usage = request.sequences[0].usage
        assert (usage.prompt_tokens, usage.cached_tokens, usage.computed_tokens) == (1000, 0, 1000)

    assert computed == {False: 1099, True: 104_950}


def test_the_naive_loop_shares_the_budget_in_order_of_admission() -> None:
    engine = make_engine(token_budget=24, recompute_all=True)
    requests = [engine.add([i] * 16, max_tokens=5, n=2) for i in range(2)]

    engine.run()

    for request in requests:
        assert_exact(engine, request)
    assert engine.scheduler.counters.computed_tokens == 4 * sum(range(16, 21))
    assert engine.scheduler.counters.recomputed_tokens == 4 * (sum(range(16, 21)) - 20)


def test_decoding_goes_on_in_every_step_of_a_long_prefill() -> None:
    engine = make_engine(token_budget=8)
    short = engine.add([1, 2, 3], max_tokens=40)
    engine.step()
    long = engine.add(range(100), max_tokens=2)

    while long.sequences[0].num_output_tokens == 0:
        before = short.sequences[0].num_output_tokens
        engine.step()
        assert short.sequences[0].num_output_tokens == before + 1

    assert long.sequences[0].prompt_len == 100


def test_n_sequences_compute_their_prompt_once_and_share_its_blocks() -> None:
    engine = make_engine()
    request = engine.add(range(20), n=4, max_tokens=5)

    engine.run()

    assert_exact(engine, request)
    assert engine.scheduler.counters.prefilled_tokens == 20 + 3
    assert [s.usage.cached_tokens for s in request.sequences] == [0, 19, 19, 19]
    assert [s.usage.computed_tokens for s in request.sequences] == [20, 1, 1, 1]
    assert sum(len(output.copies) for output in engine.outputs) == 3


@pytest.mark.parametrize("prompt_len", [1, 7, 8, 9, 16, 17])
def test_n_sequences_that_end_at_once_still_compute_their_prompt_once(prompt_len: int) -> None:
    engine = make_engine(max_num_seqs=2)
    request = engine.add(range(prompt_len), n=4, max_tokens=1)

    engine.run()

    assert_exact(engine, request)
    assert engine.scheduler.counters.prefilled_tokens == prompt_len + 3
    assert engine.manager.pool.num_free == 64


def test_too_small_a_pool_preempts_at_most_three_times_each_and_all_finish_exactly() -> None:
    engine = make_engine(num_blocks=12, watermark=0.0)
    requests = [engine.add([i] * 10, max_tokens=60) for i in range(8)]

    engine.run()

    for request in requests:
        assert_exact(engine, request)
        assert request.sequences[0].num_preemptions <= 3
        usage = request.sequences[0].usage
        assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens == 10
    counters = engine.scheduler.counters
    assert counters.num_preemptions > 0
    assert counters.recomputed_tokens > 0
    assert counters.computed_tokens == 8 * 69 + counters.recomputed_tokens


def test_two_long_and_eight_short_requests_on_60_percent_of_the_blocks_recompute_at_most_a_quarter() -> None:
    shapes = [(96, 64), (96, 64)] + [(16, 32)] * 8
    needed = sum(-(-(prompt + tokens - 1) // 8) for prompt, tokens in shapes)
    engine = make_engine(num_blocks=needed * 6 // 10, max_num_seqs=16)
    requests = [engine.add([i] * prompt, max_tokens=tokens) for i, (prompt, tokens) in enumerate(shapes)]

    engine.run()

    counters = engine.scheduler.counters
    assert all(request.sequences[0].num_preemptions <= 2 for request in requests)
    assert counters.recomputed_tokens <= 0.25 * counters.computed_tokens


def test_a_request_that_can_never_fit_is_refused_and_nothing_changes() -> None:
    engine = make_engine(num_blocks=4)

    with pytest.raises(CapacityError, match="33 token slots, the KV pool has 32"):
        engine.add([1] * 30, max_tokens=4)

    assert not engine.scheduler.has_unfinished
    request = engine.add([1] * 30, max_tokens=3)
    engine.run()
    assert_exact(engine, request)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [([], "prompt"), ([1] * 256, "prompt"), ([-1], "prompt"), ([2**31], "prompt")],
)
def test_a_bad_prompt_is_refused_and_nothing_changes(prompt: list[int], field: str) -> None:
    engine = make_engine()

    with pytest.raises(InvalidRequestError) as caught:
        engine.add(prompt)

    assert caught.value.field == field
    assert not engine.scheduler.has_unfinished


def test_ids_in_use_and_wrong_sequences_are_refused() -> None:
    engine = make_engine()
    taken = engine.add([1, 2])
    params = taken.params

    for request, field in (
        (make_request(taken.request_id, 50, [1, 2], params), "request_id"),
        (make_request("other", taken.sequences[0].sequence_id, [1, 2], params), "sequence_id"),
        (Request(RequestId("none"), (TokenId(1),), params), "sequences"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            engine.scheduler.add(request)
        assert caught.value.field == field
    different = make_request("tokens", 60, [1, 2], params)
    different.sequences[0].token_ids.append(TokenId(3))
    with pytest.raises(InvalidRequestError, match="tokens"):
        engine.scheduler.add(different)

    assert engine.scheduler.num_waiting == 1


def test_the_waiting_queue_is_bounded() -> None:
    engine = make_engine(max_waiting=3)
    engine.add([1], n=2)

    with pytest.raises(QueueFullError, match="2 sequences wait"):
        engine.add([1], n=2)

    engine.add([1])
    assert engine.scheduler.num_waiting == 3


@pytest.mark.parametrize("where", ["waiting", "prefilling", "decoding", "preempted", "between", "forked"])
def test_an_abort_at_any_point_returns_all_blocks_and_harms_nobody(where: str) -> None:
    engine = make_engine(num_blocks=12, token_budget=8, watermark=0.0)
    other = engine.add([5] * (40 if where == "preempted" else 10), max_tokens=40)
    engine.run_until(lambda: other.sequences[0].num_output_tokens > 0)
    victim = engine.add([6] * 20, max_tokens=70, n=2 if where == "forked" else 1)
    sequence = victim.sequences[0]
    if where == "prefilling":
        engine.run_until(lambda: 0 < sequence.num_computed_tokens < 20)
    elif where in ("decoding", "between", "forked"):
        engine.run_until(lambda: sequence.num_output_tokens > 2)
    elif where == "preempted":
        engine.run_until(lambda: sequence.num_preemptions > 0)
    if where == "between":
        output = engine.schedule()
        assert output is not None
        engine.scheduler.abort(victim.request_id)
        engine.complete(output)
    else:
        engine.scheduler.abort(victim.request_id)
    engine.scheduler.check_invariants()

    engine.scheduler.abort(victim.request_id)
    engine.scheduler.abort(sequence.sequence_id)
    engine.run()

    assert {s.finish_reason for s in victim.sequences} == {FinishReason.ABORT}
    assert_exact(engine, other)
    assert engine.manager.pool.num_free == 12


def test_aborting_one_of_n_sequences_leaves_the_others() -> None:
    engine = make_engine()
    request = engine.add(range(20), n=3, max_tokens=5)
    engine.step()

    engine.scheduler.abort(request.sequences[0].sequence_id)
    engine.run()

    assert [s.finish_reason for s in request.sequences] == [
        FinishReason.ABORT,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]
    assert_exact(engine, request)
    assert engine.scheduler.counters.prefilled_tokens <= 20 + 2
    assert engine.manager.pool.num_free == 64


def test_a_failed_step_is_discarded_and_its_sequences_compute_again() -> None:
    engine = make_engine()
    request = engine.add(range(20), n=2, max_tokens=5)
    engine.step()
    output = engine.schedule()
    assert output is not None
    assert output.copies

    with pytest.raises(InvariantError, match="neither updated nor discarded"):
        engine.scheduler.schedule(99)
    engine.scheduler.discard(output)
    with pytest.raises(InvariantError, match="not the step last scheduled"):
        engine.scheduler.discard(output)
    engine.run()

    assert_exact(engine, request)
    assert request.sequences[0].usage.recomputed_tokens >= 20
    assert engine.manager.pool.num_free == 64


def test_a_failed_step_passes_over_sequences_that_were_aborted_meanwhile() -> None:
    engine = make_engine()
    gone, stays = engine.add([1] * 9, max_tokens=2), engine.add([2] * 9, max_tokens=2)
    output = engine.schedule()
    assert output is not None
    engine.scheduler.abort(gone.request_id)

    engine.scheduler.discard(output)
    engine.run()

    assert gone.sequences[0].finish_reason is FinishReason.ABORT
    assert_exact(engine, stays)


def test_a_step_with_a_token_missing_is_refused_and_nothing_changes() -> None:
    engine = make_engine()
    request = engine.add([1, 2], max_tokens=2)
    output = engine.schedule()
    assert output is not None

    with pytest.raises(InvariantError, match="not every token was drawn for sequence 0"):
        engine.scheduler.update(output, {})

    engine.complete(output)
    engine.run()
    assert_exact(engine, request)


def test_end_tokens_stop_tokens_and_minimum_length_decide_when_a_sequence_ends() -> None:
    prompt = [3, 1, 4]
    plain = sequential_generate(b"", prompt, 20, 0, 7)
    token = plain[4]
    first = plain.index(token)
    later = next(i for i in range(first + 1, 20) if plain[i] == token)
    engine = make_engine()

    stopped = engine.add(prompt, max_tokens=20, eos=[token])
    by_id = engine.add(prompt, max_tokens=20, stop_token_ids=[token])
    late = engine.add(prompt, max_tokens=20, min_tokens=first + 2, eos=[token])
    ignored = engine.add(prompt, max_tokens=20, eos=[token], ignore_eos=True)
    engine.run()

    assert stopped.sequences[0].num_output_tokens == first + 1
    assert stopped.sequences[0].finish_reason is FinishReason.STOP
    assert stopped.sequences[0].stop_token_id is None
    assert by_id.sequences[0].num_output_tokens == first + 1
    assert by_id.sequences[0].stop_token_id == token
    assert late.sequences[0].num_output_tokens == later + 1
    assert ignored.sequences[0].finish_reason is FinishReason.LENGTH
    assert ignored.sequences[0].num_output_tokens == 20


def test_the_context_ends_a_sequence_without_max_tokens() -> None:
    engine = make_engine(max_model_len=40)
    request = engine.add([1] * 30, max_tokens=None)

    engine.run()

    assert request.sequences[0].num_tokens == 40
    assert request.sequences[0].finish_reason is FinishReason.LENGTH


def test_a_sequence_can_be_finished_from_above() -> None:
    engine = make_engine()
    request = engine.add([1, 2], max_tokens=50)
    engine.step()

    engine.scheduler.finish(request.sequences[0].sequence_id, FinishReason.STOP)
    engine.scheduler.finish(SequenceId(99), FinishReason.STOP)

    assert request.sequences[0].finish_reason is FinishReason.STOP
    assert not engine.scheduler.has_unfinished
    assert engine.schedule() is None


def test_prompt_logprobs_ask_for_the_logits_of_every_prompt_row_once() -> None:
    engine = make_engine(token_budget=8)
    request = engine.add([1] * 20, max_tokens=3, prompt_logprobs=1, n=2)

    engine.run()

    first = request.sequences[0].sequence_id
    rows = [(s.start, s.num_logits) for output in engine.outputs for s in output.sequences if s.sequence_id == first]
    assert rows == [(0, 8), (8, 8), (16, 4), (20, 1), (21, 1)]
    second = request.sequences[1].sequence_id
    rows = [(s.start, s.num_logits) for output in engine.outputs for s in output.sequences if s.sequence_id == second]
    assert rows == [(19, 1), (20, 1), (21, 1)]


def test_waste_counts_reserved_slots_that_hold_no_token() -> None:
    engine = make_engine()
    engine.add([1] * 5, max_tokens=1)

    engine.run()

    counters = engine.scheduler.counters
    assert (counters.reserved_slot_steps, counters.unused_slot_steps) == (8, 3)
    assert counters.waste_ratio == 3 / 8


def test_an_idle_scheduler_has_nothing_to_do() -> None:
    engine = make_engine()

    assert engine.schedule() is None
    assert engine.scheduler.counters.waste_ratio == 0.0


def test_a_running_sequence_takes_back_the_blocks_of_forks_that_only_wait() -> None:
    engine = make_engine(num_blocks=4, watermark=0.0)
    forked = engine.add(range(16), n=2, max_tokens=1)
    running = engine.add([9] * 16, max_tokens=4)
    engine.step()
    assert engine.manager.holds(forked.sequences[1])

    engine.step()

    assert not engine.manager.holds(forked.sequences[1])
    engine.run()
    assert_exact(engine, forked)
    assert_exact(engine, running)
    assert running.sequences[0].num_preemptions == 0


def test_a_waiting_fork_gives_way_when_the_first_in_line_could_not_run() -> None:
    engine = make_engine(num_blocks=4, watermark=0.0, max_num_seqs=1)
    forked = engine.add(range(16), n=2, max_tokens=1)
    engine.step()
    first = engine.add([9] * 25, max_tokens=2)
    engine.scheduler._waiting.push_front(first.sequences[0])

    engine.run()

    assert_exact(engine, first)
    assert_exact(engine, forked)


def test_a_sequence_whose_turn_was_planned_can_still_be_preempted_in_the_same_step() -> None:
    engine = make_engine(num_blocks=5, watermark=0.0, token_budget=64)
    small = engine.add([1] * 10, max_tokens=4)
    large = engine.add([2] * 24, max_tokens=4)
    engine.step()

    output = engine.schedule()

    assert output is not None
    assert output.preempted == (small.sequences[0].sequence_id,)
    assert [s.sequence_id for s in output.sequences] == [large.sequences[0].sequence_id]
    engine.complete(output)
    engine.run()
    assert_exact(engine, small)
    assert_exact(engine, large)


def test_a_sequence_preempted_three_times_runs_to_its_end_on_reserved_blocks() -> None:
    engine = make_engine(num_blocks=10, watermark=0.0)
    guaranteed = engine.add([1] * 8, max_tokens=57)
    guaranteed.sequences[0].num_preemptions = 3
    others = [engine.add([2 + i] * 8, max_tokens=40) for i in range(3)]

    engine.run()

    assert guaranteed.sequences[0].num_preemptions == 3
    assert guaranteed.sequences[0].usage.recomputed_tokens == 0
    for request in [guaranteed, *others]:
        assert_exact(engine, request)


def test_a_guaranteed_sequence_takes_a_pin_that_came_after_its_guarantee() -> None:
    cache = CacheConfig(num_blocks=8, block_size=8, prefix_cache="radix", pin_share=0.5)
    engine = SimulatedEngine(cache, SchedulerConfig(max_num_seqs=4, token_budget=32, max_model_len=64))
    stored = engine.add(range(32), max_tokens=1)
    engine.run()
    guaranteed = engine.add([1] * 8, max_tokens=50)
    guaranteed.sequences[0].num_preemptions = 3
    engine.step()
    assert engine.manager.pin(b"", list(stored.prompt_token_ids)) is not None

    engine.run()

    assert_exact(engine, guaranteed)
    assert not engine.manager.drop_oldest_pin()


def test_a_guaranteed_sequence_that_finds_no_room_waits_for_the_next_step() -> None:
    engine = make_engine(num_blocks=4)
    request = engine.add([1] * 8, max_tokens=20)
    request.sequences[0].num_preemptions = 3
    engine.step()
    engine.scheduler.manager.config = CacheConfig(num_blocks=4, block_size=8)  # no checks: blocks are taken by hand
    blocks = engine.manager.pool.allocate(3)
    assert blocks is not None

    assert engine.scheduler.schedule(50) is None

    engine.manager.pool.release(blocks)
    engine.run()
    assert_exact(engine, request)


def test_blocks_that_cannot_be_evicted_now_are_waited_for() -> None:
    cache = CacheConfig(num_blocks=8, block_size=8, prefix_cache="radix")
    engine = SimulatedEngine(cache, SchedulerConfig(max_num_seqs=4, token_budget=32, max_model_len=64))
    engine.add(range(32), max_tokens=1)
    engine.run()
    (node,) = engine.manager.prefix_cache._nodes()  # type: ignore[attr-defined]
    tail = node.blocks[-1:]
    engine.manager.pool.acquire(tail)  # held by hand: the blocks before it count as available and cannot go
    request = engine.add([1] * 8, max_tokens=50)
    while engine.scheduler.schedule(99) is not None:
        output = engine.scheduler._pending
        assert output is not None
        engine.take_in(output)  # unchecked: the hold is nobody's

    engine.manager.pool.release(tail)
    engine.run()

    assert_exact(engine, request)
    assert request.sequences[0].num_preemptions >= 1


def test_damage_to_queues_and_sequences_is_found_out() -> None:
    engine = make_engine()
    request = engine.add([1] * 8, max_tokens=20)
    engine.step()
    sequence = request.sequences[0]

    sequence.num_computed_tokens += 100
    with pytest.raises(InvariantError, match="108 tokens computed, 8 slots"):
        engine.scheduler.check_invariants()
    sequence.num_computed_tokens -= 100
    engine.scheduler._running.discard(sequence)
    with pytest.raises(InvariantError, match="in no queue"):
        engine.scheduler.check_invariants()


def test_a_probe_wants_one_row_at_its_prompts_end_and_draws_nothing() -> None:
    engine = make_engine(token_budget=10)
    request = engine.add(range(25), prefill_only=True, probe=Probe(hidden_state=True))

    engine.run()

    rows = [(s.num_logits, s.samples) for output in engine.outputs for s in output.sequences]
    assert rows == [(0, False), (0, False), (1, False)]
    sequence = request.sequences[0]
    assert sequence.finish_reason is FinishReason.LENGTH
    assert (sequence.num_output_tokens, sequence.usage.computed_tokens, sequence.usage.completion_tokens) == (0, 25, 0)
    assert engine.scheduler.counters.sampled_tokens == 0


def test_reading_a_prompt_without_a_probe_wants_no_row() -> None:
    engine = make_engine(token_budget=10)
    engine.add(range(25), prefill_only=True)

    engine.run()

    assert {s.num_logits for output in engine.outputs for s in output.sequences} == {0}
