"""The store of whole answers on its own: lifetime, budget, tenants, and answers that come back as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Usage
from foreword.llm.outputs import CompletionOutput, RequestOutput, TokenLogprob
from foreword.server.generation import Piece
from foreword.server.response_cache import (
    Directives,
    ResponseCache,
    decode_answer,
    encode_answer,
    is_deterministic,
    parse_directives,
)
from foreword.server.tenant_store import ENTRY_OVERHEAD


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_lives_its_time_and_no_longer() -> None:
    clock = Clock()
    cache = ResponseCache(10_000, 60, b"", clock=clock)
    cache.store(b"a", b"key", b"record")

    clock.now += 59
    assert cache.find(b"a", b"key") == b"record"
    assert cache.find(b"a", b"key", max_age_s=58) is None
    assert cache.find(b"a", b"key", max_age_s=59) == b"record"
    clock.now += 1
    assert cache.find(b"a", b"key") is None
    assert (cache.num_entries, cache.num_bytes) == (0, 0)


def test_another_tenant_never_finds_it() -> None:
    cache = ResponseCache(10_000, 60, b"")
    cache.store(b"a", b"key", b"record")

    assert cache.find(b"b", b"key") is None
    assert cache.find(b"a", b"key") == b"record"


def test_a_greedy_tenant_pushes_out_its_own_answers_alone() -> None:
    cache = ResponseCache(10 * (100 + ENTRY_OVERHEAD), 60, b"")
    cache.store(b"calm", b"kept", bytes(100))

    for number in range(100):
        cache.store(b"greedy", b"%d" % number, bytes(100))

    assert cache.find(b"calm", b"kept") is not None
    assert cache.num_entries == 10
    assert [n for n in range(100) if cache.find(b"greedy", b"%d" % n) is not None] == list(range(91, 100))


def test_an_answer_beyond_the_budget_is_not_kept_and_pushes_nothing_out() -> None:
    cache = ResponseCache(2000, 60, b"")
    cache.store(b"a", b"kept", b"x")

    assert not cache.store(b"a", b"large", bytes(2000))
    assert cache.find(b"a", b"kept") == b"x"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "find", "reset", "later"]),
            st.sampled_from([b"a", b"b", b"c"]),
            st.integers(0, 5),
            st.integers(0, 900),
        )
    )
)
def test_what_is_found_is_what_was_stored_last_and_the_count_of_bytes_is_right(
    acts: list[tuple[str, bytes, int, int]],
) -> None:
    clock = Clock()
    cache = ResponseCache(4000, 10, b"", clock=clock)
    stored: dict[tuple[bytes, bytes], tuple[bytes, float]] = {}
    for number, (act, tenant, key_number, size) in enumerate(acts):
        key = b"%d" % key_number
        if act == "store":
            record = number.to_bytes(4, "little") + bytes(size)
            assert cache.store(tenant, key, record)
            stored[tenant, key] = record, clock.now
        elif act == "find":
            found = cache.find(tenant, key)
            if found is not None:
                record, since = stored[tenant, key]
                assert found == record
                assert clock.now - since < 10
        elif act == "reset":
            cache.reset()
            stored.clear()
        else:
            clock.now += size / 100
        records = cache._records
        entries = [entry for own in records._entries.values() for entry in own.values()]
        assert cache.num_bytes == sum(entry.num_bytes for entry in entries) <= 4000
        assert cache.num_entries == len(entries)
        assert cache.num_bytes == sum(records._tenant_bytes.values())
        assert set(records._tenant_bytes) == set(records._entries)


LOGPROB = st.builds(TokenLogprob, st.floats(-50, 0), st.integers(1, 100), st.text(max_size=4))
POSITIONS = st.lists(st.dictionaries(st.integers(0, 2**31 - 1), LOGPROB, max_size=3), max_size=3)
ANSWER = st.builds(
    CompletionOutput,
    st.integers(0, 15),
    st.text(),
    st.lists(st.integers(0, 2**31 - 1)),
    st.none() | st.floats(-99, 0),
    st.none() | POSITIONS,
    st.sampled_from(["stop", "length"]),
    st.none() | st.text() | st.integers(0, 2**31 - 1),
)
OUTPUT = st.builds(
    RequestOutput, st.just(""), st.none() | st.text(), st.lists(st.integers(0, 2**31 - 1)), st.lists(ANSWER, max_size=3)
)
PIECE = st.builds(
    Piece,
    st.just(0),
    st.integers(0, 15),
    st.text(),
    st.lists(st.integers(0, 2**31 - 1)).map(tuple),
    POSITIONS,
    st.none() | st.sampled_from(["stop", "length"]),
    st.none() | st.text() | st.integers(0, 2**31 - 1),
    st.integers(0, 99).map(lambda count: Usage(completion_tokens=count)),
)


@given(OUTPUT, st.lists(PIECE))
def test_an_answer_comes_back_as_it_was_but_for_its_account(output: RequestOutput, pieces: list[Piece]) -> None:
    output.usage = Usage(len(output.prompt_token_ids), 1, 2, 3, completion_tokens=7)

    (found,), again = decode_answer(encode_answer([output], pieces))

    total = len(output.prompt_token_ids)
    assert found.usage == Usage(prompt_tokens=total, cached_tokens=total, completion_tokens=7)
    assert (found.prompt, found.prompt_token_ids, found.outputs) == (
        output.prompt,
        output.prompt_token_ids,
        output.outputs,
    )
    for piece, before in zip(again, pieces, strict=True):
        assert piece.usage == Usage(total, total, completion_tokens=before.usage.completion_tokens)
        for name in ("prompt_index", "index", "text", "token_ids", "logprobs", "finish_reason", "stop_reason"):
            assert getattr(piece, name) == getattr(before, name)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Directives()),
        ("no-store", Directives(no_store=True)),
        ("No-Cache, max-age=0", Directives(no_cache=True, max_age_s=0)),
        ("only-if-cached , no-store", Directives(only_if_cached=True, no_store=True)),
        ('max-age="60"', Directives(max_age_s=60)),
        ("max-age=-1", Directives()),
        ("max-age=1e3, max-stale=4, no-transform, x=,", Directives()),
        ("max-age=" + "9" * 5000, Directives()),
        ("no-storelike", Directives()),
    ],
)
def test_cache_control_is_read_leniently(header: str, expected: Directives) -> None:
    assert parse_directives(header) == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(temperature=0), True),
        (SamplingParams(temperature=1e-5), True),
        (SamplingParams(temperature=0.7), False),
        (SamplingParams(temperature=0.7, seed=0), True),
        (SamplingParams(), False),
    ],
)
def test_only_what_has_one_answer_is_kept(params: SamplingParams, expected: bool) -> None:
    assert is_deterministic(params) is expected
