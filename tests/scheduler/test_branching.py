"""A sequence that goes on as several: what is shared, what is copied, who gives way, and what is refused."""

import pytest

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import InvariantError
from foreword.core.sequence import FinishReason, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.scheduler.policy import choose_victim
from tests.oracles.engine import SimulatedEngine, fork_of


def make_engine(num_blocks: int = 64, **config: object) -> SimulatedEngine:
    settings = {"max_num_seqs": 8, "token_budget": 32, "max_model_len": 100, **config}
    cache = CacheConfig(num_blocks=num_blocks, block_size=8, debug=True)
    return SimulatedEngine(cache, SchedulerConfig(**settings))  # type: ignore[arg-type]


def start(engine: SimulatedEngine, prompt_len: int, max_tokens: int = 20) -> Sequence:
    """A branching request whose prompt is computed."""
    request = engine.add(range(prompt_len), branches=True, max_tokens=max_tokens)
    engine.run_until(lambda: bool(engine.undecided(request)))
    return request.sequences[0]


def tables(engine: SimulatedEngine, *beams: Sequence) -> list[list[int]]:
    return [list(engine.manager.block_table(beam).ids) for beam in beams]


def test_forks_share_every_block_until_they_write_and_whole_blocks_for_good() -> None:
    engine = make_engine()
    beam = start(engine, 20)

    beams = engine.branch(beam, [1, 2, 3])
    before = tables(engine, *beams)
    engine.step()
    after = tables(engine, *beams)

    assert before[0] == before[1] == before[2]
    assert {tuple(table[:2]) for table in after} == {tuple(before[0][:2])}
    assert len({table[2] for table in after}) == 3
    assert [b.token_ids[20:] for b in beams] == [[1], [2], [3]]


def test_forks_at_the_end_of_a_block_copy_nothing() -> None:
    engine = make_engine()
    beam = start(engine, 16)

    engine.branch(beam, [1, 2])
    engine.step()

    assert engine.outputs[-1].copies == ()
    assert engine.outputs[-1].num_tokens == 2
    assert engine.manager.pool.num_held == 2 + 2


def test_a_branching_sequence_takes_no_token_by_itself_and_is_not_run_again() -> None:
    engine = make_engine()
    beam = start(engine, 20)

    assert engine.step() == []
    assert beam.num_output_tokens == 0
    assert engine.scheduler.num_running == 1
    assert engine.scheduler.has_unfinished


def test_a_fork_has_its_parents_account_without_what_was_told_already() -> None:
    engine = make_engine()
    beam = start(engine, 20)
    beam.usage.recomputed_tokens = beam.usage.written_tokens = 5

    _, child = engine.branch(beam, [1, 2])

    assert (child.usage.prompt_tokens, child.usage.computed_tokens) == (20, 20)
    assert (child.usage.recomputed_tokens, child.usage.written_tokens) == (0, 0)
    assert child.usage.completion_tokens == 1
    assert engine.scheduler.counters.cached_tokens == 0


def test_forks_without_a_seat_wait_with_their_blocks() -> None:
    engine = make_engine(max_num_seqs=1)
    beam = start(engine, 20)

    beams = engine.branch(beam, [1, 2, 3])
    for _ in range(3):
        engine.step()

    assert engine.undecided(engine.requests["r0"]) == beams
    assert [output.num_tokens for output in engine.outputs[1:]] == [1, 1, 1]


def test_ending_one_beam_frees_its_own_blocks_alone() -> None:
    engine = make_engine()
    beams = engine.branch(start(engine, 20), [1, 2])
    engine.step()

    engine.scheduler.abort(beams[1].sequence_id)

    assert engine.manager.pool.num_held == 3  # what the step copied from went with the step
    engine.scheduler.abort(RequestId("r0"))
    assert engine.manager.pool.num_free == 64


def test_a_failed_step_holds_nothing_for_its_copies() -> None:
    engine = make_engine()
    engine.branch(start(engine, 20), [1, 2])
    output = engine.scheduler.schedule(100)
    assert output is not None
    assert output.copies

    engine.scheduler.discard(output)

    assert engine.manager.pool.num_held == 0  # its two sequences wait, and hold nothing either
    engine.manager.check_invariants()


def test_whoever_awaits_a_choice_gives_its_blocks_to_whoever_needs_them() -> None:
    engine = make_engine(num_blocks=4)
    beam = start(engine, 20, max_tokens=6)
    other = engine.add([6] * 9, max_tokens=18)

    engine.run_until(lambda: not engine.manager.holds(beam))
    beams = engine.branch(beam, [1, 2])
    engine.run_until(lambda: bool(engine.undecided(engine.requests["r0"])))

    assert other.sequences[0].finish_reason is FinishReason.LENGTH
    assert sum(b.usage.recomputed_tokens for b in beams) > 0
    assert [b.token_ids[20:] for b in beams] == [[1], [2]]


def test_beams_that_share_every_block_of_a_full_pool_go_on_one_after_the_other() -> None:
    engine = make_engine(num_blocks=3)
    beam = start(engine, 20, max_tokens=4)

    beams = engine.branch(beam, [1, 2])
    engine.run_until(lambda: bool(engine.undecided(engine.requests["r0"])))

    assert engine.scheduler.counters.num_preemptions == 1
    assert all(b.num_output_tokens == 1 for b in beams)


def test_a_victim_that_only_shares_is_chosen_when_any_helps() -> None:
    engine = make_engine()
    beams = engine.branch(start(engine, 20), [1, 2])

    costs = engine.manager.num_exclusive_blocks
    assert choose_victim(beams, costs) is None
    assert choose_victim(beams, costs, any_helps=True) is beams[1]
    assert choose_victim(beams, lambda b: int(b is beams[0]), any_helps=True) is beams[0]


def test_the_naive_loop_branches_too_and_computes_everything_again() -> None:
    engine = make_engine(recompute_all=True, token_budget=64)
    beam = start(engine, 20)

    engine.branch(beam, [1, 2])
    engine.step()

    assert engine.scheduler.counters.computed_tokens == 20 + 2 * 21


def test_what_is_no_branch_is_refused_with_nothing_changed() -> None:
    engine = make_engine()
    beam = start(engine, 20)
    held = engine.manager.pool.num_held
    stranger = fork_of(beam, 50)
    stranger.token_ids.append(TokenId(1))
    branch = engine.scheduler.branch
    one, two = [TokenId(1)], [TokenId(1), TokenId(2)]

    with pytest.raises(InvariantError, match="cannot take 1 tokens"):
        branch(SequenceId(77), one, [])
    with pytest.raises(InvariantError, match="in 0 forks"):
        branch(beam.sequence_id, two, [])
    with pytest.raises(InvariantError, match="new ids"):
        branch(beam.sequence_id, two, [fork_of(beam, beam.sequence_id)])
    with pytest.raises(InvariantError, match="other tokens"):
        branch(beam.sequence_id, two, [stranger])

    engine.scheduler.check_invariants()
    assert engine.manager.pool.num_held == held
    assert beam.num_output_tokens == 0
