"""Both providers' rules over positions alone: the worked cases of their guides, figure for figure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.server.account import Account
from foreword.server.cache_policy import anthropic_rules, openai_rules
from foreword.server.cache_policy.anthropic_rules import Block, positions_back
from foreword.server.cache_policy.emulation import Emulation
from foreword.server.cache_policy.ledger import Ledger, PrefixDigests, Write
from foreword.server.cache_policy.openai_rules import Point, eligible_ends
from foreword.server.cache_policy.outcome import EmulatedPlan, Outcome


class Provider:
    """A ledger with a clock of its own; requests are blocks with their tokens, one kind of token a block."""

    def __init__(self, minimum: int = 1) -> None:
        self.now = 0.0
        self.minimum = minimum
        self.num_earlier = 0
        self.ledger = Ledger(lambda: self.now)

    def digests(self, sizes: list[int], key: str = "") -> PrefixDigests:
        ids = [name for name, size in enumerate(sizes) for _ in range(size)]
        return PrefixDigests([key.encode()], ids)

    def message(self, sizes: list[int], ttls: dict[int, str], *, begins: bool = True, kind: str = "text") -> Outcome:
        """A request to Anthropic; `ttls` are its breakpoints, by block."""
        blocks = [Block(kind, ttls.get(i)) for i in range(len(sizes))]
        digests = self.digests(sizes)
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        outcome = anthropic_rules.decide(blocks, ends.__getitem__, digests, self.ledger, self.minimum, self.now)
        return self.finish(outcome, begins=begins)

    def chat(self, sizes: list[int], points: list[Point], *, key: str = "", is_explicit: bool = False) -> Outcome:
        """A request to OpenAI."""
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        outcome = openai_rules.decide(
            points,
            ends.__getitem__,
            self.digests(sizes, key),
            self.ledger,
            is_explicit=is_explicit,
            ttl="30m",
            minimum=self.minimum,
            now=self.now,
        )
        return self.finish(outcome)

    def earlier(self, total: int, *, shared: int = 0, retention: str = "24h") -> Outcome:
        """A request to an earlier model of OpenAI's: `shared` tokens in common with all others."""
        self.num_earlier += 1
        ids = [0] * shared + [self.num_earlier] * (total - shared)
        outcome = openai_rules.decide_by_interval(
            total, PrefixDigests([], ids), self.ledger, retention=retention, minimum=self.minimum, now=self.now
        )
        return self.finish(outcome)

    def finish(self, outcome: Outcome, *, begins: bool = True) -> Outcome:
        plan = EmulatedPlan(outcome, self.ledger, self.now)
        if begins:
            plan.begun()
            plan.begun()
        return outcome


USER = Point("user")
ASSISTANT = Point("assistant")


# -- B1: OpenAI since GPT-5.6 ------------------------------------------------------------------------------------------


def test_12_000_tokens_are_written_and_15_000_read_12_000_and_write_3_000() -> None:
    openai = Provider(minimum=1024)

    first = openai.chat([12_000], [USER])
    second = openai.chat([12_000, 500, 2_500], [USER, ASSISTANT, USER])

    assert (first.read, first.written) == (0, 12_000)
    assert (second.read, second.written) == (12_000, 3_000)


def test_implicit_mode_writes_the_latest_three_markers_and_one_of_its_own() -> None:
    openai = Provider()
    marked = [Point("user", "30m", is_message_end=False) for _ in range(5)]

    outcome = openai.chat([100] * 6, [*marked, USER])

    assert outcome.written == 600
    assert len(outcome.writes) == 4
    again = openai.chat([100, 100], [Point("user", "30m"), USER])
    assert again.read == 0  # the first two markers were not written


def test_explicit_mode_writes_the_latest_four_and_without_a_marker_nothing() -> None:
    openai = Provider()
    marked = [Point("user", "30m", is_message_end=False) for _ in range(5)]

    outcome = openai.chat([100] * 6, [*marked, USER], is_explicit=True)

    assert (outcome.written, len(outcome.writes)) == (500, 4)
    assert openai.chat([100] * 6, [USER] * 6, is_explicit=True) == Outcome()
    assert openai.chat([100] * 6, [USER] * 6).read == 500  # implicit mode finds what lies at a message's end


def test_an_implicit_entry_is_not_read_in_explicit_mode_unless_a_marker_falls_on_its_end() -> None:
    openai = Provider()
    openai.chat([500], [USER])

    assert openai.chat([500, 100], [USER, Point("user", "30m")], is_explicit=True).read == 0
    assert openai.chat([500, 90], [Point("user", "30m"), USER], is_explicit=True).read == 500


def test_more_text_in_the_same_message_breaks_reuse() -> None:
    openai = Provider()
    openai.chat([500], [USER])

    longer = openai.digests([500, 20])
    outcome = openai_rules.decide(
        [USER], lambda _: 520, longer, openai.ledger, is_explicit=False, ttl="30m", minimum=1, now=0
    )

    assert (outcome.read, outcome.written) == (0, 520)


def test_different_keys_share_nothing() -> None:
    openai = Provider()
    openai.chat([500], [USER], key="a")

    assert openai.chat([500], [USER], key="b").read == 0
    assert openai.chat([500], [USER], key="a").read == 500


def test_an_entry_lives_half_an_hour_from_its_last_use() -> None:
    openai = Provider()
    openai.chat([500], [USER])
    openai.now = 1799
    assert openai.chat([500], [USER]).read == 500
    openai.now = 3598
    assert openai.chat([500], [USER]).read == 500

    openai.now += 1800
    assert openai.chat([500], [USER]).read == 0


def test_under_the_minimum_nothing_is_cached() -> None:
    openai = Provider(minimum=1024)

    assert openai.chat([1023], [USER]) == Outcome()
    assert openai.chat([1024], [USER]).written == 1024


def test_eligible_ends_are_users_and_the_last_of_a_group_of_tool_results() -> None:
    roles = ["developer", "user", "assistant", "tool", "tool", "assistant", "user", "tool"]

    assert eligible_ends([Point(role) for role in roles]) == [1, 4, 6, 7]


def test_instructions_alone_have_their_end_and_are_found_there() -> None:
    openai = Provider()
    developer, inner = Point("developer"), Point("developer", is_message_end=False)

    assert openai.chat([100, 100], [inner, developer]).written == 200
    assert openai.chat([100, 100, 50], [inner, developer, USER]).read == 200


# -- B1: earlier models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "shared", "read"),
    [(2006, 2006, 1920), (1024, 1024, 1024), (1023, 1023, 0), (3000, 1500, 1408), (3000, 1100, 1024), (3000, 900, 0)],
)
def test_earlier_models_round_down_to_128_and_tell_of_no_writes(total: int, shared: int, read: int) -> None:
    openai = Provider(minimum=1024)
    first = openai.earlier(4000, shared=shared)

    second = openai.earlier(total, shared=shared)

    assert (first.read, first.written, first.written_1h) == (0, 0, 0)
    assert (second.read, second.written) == (read, 0)


def test_in_memory_ends_after_five_idle_minutes_and_after_an_hour_in_any_case() -> None:
    openai = Provider(minimum=1024)
    for _ in range(14):
        openai.earlier(2000, shared=2000, retention="in_memory")
        openai.now += 290
        if openai.now < 3600:
            assert openai.earlier(2000, shared=2000, retention="in_memory").read == 1920

    assert openai.now > 3600
    idle = Provider(minimum=1024)
    idle.earlier(2000, shared=2000, retention="in_memory")
    idle.now = 300
    assert idle.earlier(2000, shared=2000, retention="in_memory").read == 0


# -- B2: Anthropic -----------------------------------------------------------------------------------------------------


def test_the_worked_case_of_the_lookback() -> None:
    claude = Provider()
    sizes = [10] * 35

    first = claude.message(sizes[:10], {9: "5m"})
    second = claude.message(sizes[:15], {14: "5m"})
    third = claude.message(sizes, {34: "5m"})

    assert (first.read, first.written) == (0, 100)
    assert (second.read, second.written) == (100, 50)
    assert (third.read, third.written) == (0, 350)  # blocks 35 to 16 were looked at, 15 was not


def test_a_second_marker_within_reach_finds_what_the_last_does_not() -> None:
    claude = Provider()
    claude.message([10] * 15, {14: "5m"})

    third = claude.message([10] * 35, {19: "5m", 34: "5m"})

    assert (third.read, third.written) == (150, 200)


def test_a_run_of_tool_blocks_is_one_position() -> None:
    kinds = ["text", *["tool_use"] * 30, *["tool_result"] * 30, *["text"] * 18]
    blocks = [Block(kind) for kind in kinds]

    assert list(positions_back(blocks, len(blocks) - 1)) == list(range(len(blocks) - 1, 0, -1))
    assert list(positions_back(blocks[:-1], len(blocks) - 2)) == list(range(len(blocks) - 2, -1, -1))


def test_mixed_lifetimes_are_billed_from_the_hit_to_the_last_hour_and_from_there_to_the_end() -> None:
    claude = Provider()
    claude.message([1000], {0: "1h"})

    outcome = claude.message([1000, 400, 300, 50], {0: "1h", 1: "1h", 2: "5m"})

    assert (outcome.read, outcome.written_1h, outcome.written - outcome.written_1h) == (1000, 400, 300)


def test_only_what_is_marked_is_read_or_written() -> None:
    claude = Provider()

    assert claude.message([1000, 1000], {}) == Outcome()
    assert claude.message([1000, 1000], {}) == Outcome()
    assert claude.message([1000, 1000], {1: "5m"}).written == 2000
    assert claude.message([1000], {0: "5m"}).read == 0  # written to the end of block 1 only


def test_an_entry_is_readable_once_the_answer_has_begun() -> None:
    claude = Provider()
    first = claude.message([1000], {0: "5m"}, begins=False)
    parallel = claude.message([1000], {0: "5m"}, begins=False)

    assert (first.written, parallel.written) == (1000, 1000)
    claude.finish(first)
    assert claude.message([1000], {0: "5m"}).read == 1000


def test_lifetimes_count_from_the_start_of_the_request_and_anew_from_each_use() -> None:
    claude = Provider()
    slow = claude.message([1000], {0: "5m"}, begins=False)
    plan = EmulatedPlan(slow, claude.ledger, started=0.0)
    claude.now = 200
    plan.begun()

    claude.now = 299
    assert claude.message([1000], {0: "5m"}).read == 1000
    claude.now = 598
    assert claude.message([1000], {0: "5m"}).read == 1000
    claude.now = 898
    assert claude.message([1000], {0: "1h"}).read == 0
    claude.now = 898 + 3599
    assert claude.message([1000], {0: "5m"}).read == 1000


@pytest.mark.parametrize(
    ("model", "minimum"),
    [
        ("claude-opus-5", 512),
        ("claude-fable-5.1", 512),
        ("claude-sonnet-4-6", 1024),
        ("claude-opus-4-1", 1024),
        ("claude-opus-4-8", 1024),
        ("claude-opus-4-7", 2048),
        ("claude-3-5-haiku-latest", 2048),
        ("claude-mythos-preview", 2048),
        ("claude-opus-4-5", 4096),
        ("claude-haiku-4-5-20251001", 4096),
        ("smollm2", 1024),
    ],
)
def test_the_minimum_is_the_models_and_a_setting_goes_before_it(model: str, minimum: int) -> None:
    assert Emulation("anthropic").minimum(model) == minimum
    assert Emulation("anthropic", minimum=7).minimum(model) == 7
    assert Emulation("openai").minimum(model) == 1024
    claude = Provider(minimum)
    assert claude.message([minimum - 1], {0: "5m"}) == Outcome()
    assert claude.message([minimum], {0: "5m"}).written == minimum


@pytest.mark.parametrize(
    ("model", "is_earlier"),
    [
        *[("gpt-4o", True), ("gpt-5", True), ("gpt-5-mini", True), ("gpt-5.5", True), ("o3", True)],
        *[("gpt-5.6", False), ("gpt-6.1-sol", False), ("smollm2", False)],
    ],
)
def test_openais_generation_goes_by_the_models_name(model: str, is_earlier: bool) -> None:
    assert Emulation("openai").counts_intervals(model) == is_earlier
    assert not Emulation("anthropic").counts_intervals(model)


# -- both --------------------------------------------------------------------------------------------------------------

TTLS = st.dictionaries(st.integers(0, 11), st.sampled_from(["5m", "1h"]), max_size=4)


@given(st.lists(st.tuples(st.integers(1, 12), TTLS, st.integers(0, 4000)), max_size=12), st.integers(1, 40))
def test_reads_and_writes_never_exceed_the_prompt_and_a_repeat_reads_what_was_written(
    requests: list[tuple[int, dict[int, str], int]], minimum: int
) -> None:
    claude = Provider(minimum)
    for count, ttls, wait in requests:
        sizes = [7] * count
        first, second = (claude.message(sizes, ttls) for _ in range(2))
        assert 0 <= first.written_1h <= first.written
        assert first.read + first.written <= sum(sizes)
        assert (second.read, second.written) == (first.read + first.written, 0)
        claude.now += wait


def test_a_ledger_forgets_what_was_not_used_for_longest() -> None:
    ledger = Ledger(lambda: 0.0, max_entries=2)
    for digest in (b"a", b"b"):
        ledger.store([Write(digest=digest, lifetime_s=10)], 0)
    ledger.renew([b"a", b"unknown"], 1)
    ledger.store([Write(digest=b"c", lifetime_s=10)], 1)

    assert [ledger.has(digest, 2) for digest in (b"a", b"b", b"c")] == [True, False, True]


def test_an_account_keeps_what_is_no_providers_business() -> None:
    plan = EmulatedPlan(Outcome(read=3, written=4, written_1h=1), Ledger(lambda: 0.0), 0.0)

    told = plan.told(Account(prompt=20, read=19, written=1, completion=5, outcome="miss"))

    assert told == Account(prompt=20, read=3, written=4, completion=5, outcome="miss", written_1h=1)
