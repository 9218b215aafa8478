"""A tenant's limits: buckets by a monotonic clock, words of the keys' file, and what a client is told."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import InvalidRequestError
from foreword.server.errors import ApiError
from foreword.server.quotas import NO_LIMITS, Bucket, Quotas, Rate, TenantLimits, parse_limits
from foreword.server.tenants import KeyRing, new_key
from tests.server.conftest import Keyed
from tests.server.test_response_cache import Clock
from tests.server.wire import completion_body, message_body, send


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 30)), max_size=60),
)
def test_no_window_of_time_lets_more_through_than_a_period_allows_and_one_debt(
    amount: int, asked: list[tuple[float, int]]
) -> None:
    bucket, now = Bucket(Rate("tokens", amount, 60), 0.0), 0.0
    taken: list[tuple[float, int]] = []
    for later, wanted in asked:
        now += later
        if bucket.wait_s(wanted, now) == 0:
            bucket.take(wanted, now)
            taken.append((now, wanted))

    for first in range(len(taken)):
        for last in range(first, len(taken)):
            span = taken[last][0] - taken[first][0]
            total = sum(wanted for _, wanted in taken[first:last])  # the last one may be a debt
            assert total <= amount + amount * span / 60 + 30 + 1e-6


@given(st.integers(1, 100), st.integers(1, 300), st.floats(0, 100))
def test_waiting_as_long_as_told_is_enough_and_not_much_too_long(amount: int, wanted: int, past: float) -> None:
    bucket = Bucket(Rate("tokens", amount, 60), 0.0)
    bucket.take(2 * amount, 0.0)

    wait = bucket.wait_s(wanted, past)

    if wait > 0.01:
        assert bucket.wait_s(wanted, past + wait - 0.01) > 0
    assert bucket.wait_s(wanted, past + wait + 1e-6) <= 1e-6


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = Bucket(Rate("requests", 1, 60), 100.0)
    bucket.take(1, 100.0)

    assert bucket.level(100.0) == bucket.level(50.0) == 0
    assert bucket.level(130.0) == pytest.approx(0.5)


def test_limits_are_read_from_words() -> None:
    words = ["requests=60/m", "tokens=1000/m", "tokens=9/d", "concurrent=2", "kv=25%"]

    assert parse_limits(words, "here") == TenantLimits(
        (Rate("requests", 60, 60), Rate("tokens", 1000, 60), Rate("tokens", 9, 86_400)), 2, 0.25
    )
    assert parse_limits([], "here") == NO_LIMITS


@pytest.mark.parametrize(
    "word",
    [
        *("requests=60", "requests=0/m", "requests=-1/m", "requests=1.5/m", "requests=1/h", "requests=/m", "tokens"),
        *("concurrent=0", "concurrent=1/m", "kv=25", "kv=0%", "kv=101%", "speed=1/m", "requests=" + "9" * 40 + "/m"),
        *("requests=١/m", "=", ""),
    ],
)
def test_other_words_are_refused_with_what_was_expected(word: str) -> None:
    with pytest.raises(InvalidRequestError, match="requests=N/m"):
        parse_limits([word], "keys:1")


def test_a_limit_said_twice_is_refused() -> None:
    for words in (["requests=1/m", "requests=2/m"], ["concurrent=1", "concurrent=1"], ["kv=1%", "kv=2%"]):
        with pytest.raises(InvalidRequestError):
            parse_limits(words, "keys:1")


def test_a_names_limits_hold_for_all_its_keys_and_must_agree(tmp_path: Path) -> None:
    (key, line), (other_key, other_line) = new_key("a", "user"), new_key("a", "user")
    file = tmp_path / "keys"
    file.write_text(f"{line} concurrent=2\n{other_line}\n")

    ring = KeyRing.from_file(file)

    tenants = [ring.find(k) for k in (key, other_key)]
    assert tenants[0] == tenants[1] == ring.tenants[0]
    assert tenants[0] is not None
    assert tenants[0].limits.concurrent == 2
    file.write_text(f"{line} concurrent=2\n{other_line} concurrent=3\n")
    with pytest.raises(InvalidRequestError, match="same limits"):
        KeyRing.from_file(file)


def test_requests_and_tokens_are_charged_and_given_back() -> None:
    clock = Clock()
    quotas = Quotas(clock)
    limits = parse_limits(["requests=2/m", "tokens=100/m", "concurrent=2"], "")
    first = quotas.enter(b"a", limits)
    assert first is not None
    first.take("tokens", 80)
    second = quotas.enter(b"a", limits)
    assert second is not None
    with pytest.raises(ApiError) as refused:
        second.take("tokens", 30)

    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "6")
    assert refused.value.headers["x-ratelimit-remaining-tokens"] == "20"
    first.charge("tokens", 10 - 75)  # ten generated, most of the prompt read
    second.take("tokens", 30)
    first.leave()
    second.leave()
    second.leave()
    with pytest.raises(ApiError, match="2 requests a minute") as late:
        quotas.enter(b"a", limits)
    assert late.value.headers["retry-after"] == "30"
    assert quotas.enter(b"b", limits) is not None
    clock.now += 30
    assert quotas.enter(b"a", limits) is not None
    assert quotas.enter(b"c", NO_LIMITS) is None


def test_one_too_many_at_once_is_refused_until_one_ends() -> None:
    quotas, limits = Quotas(Clock()), parse_limits(["concurrent=1"], "")
    first = quotas.enter(b"a", limits)
    assert first is not None
    with pytest.raises(ApiError, match="1 requests at once"):
        quotas.enter(b"a", limits)

    first.leave()

    assert quotas.enter(b"a", limits) is not None


def test_changed_limits_hold_at_once_and_open_requests_still_count() -> None:
    quotas = Quotas(Clock())
    open_one = quotas.enter(b"a", parse_limits(["concurrent=5"], ""))
    assert open_one is not None

    with pytest.raises(ApiError):
        quotas.enter(b"a", parse_limits(["concurrent=1"], ""))
    open_one.leave()

    assert quotas.enter(b"a", parse_limits(["concurrent=1"], "")) is not None


def limited(tiny: str, folder: Path, words: str) -> Keyed:
    keyed = Keyed(tiny, folder)
    file = folder / "keys"
    alice = [line for line in file.read_text().splitlines() if line.startswith("alice")]
    file.write_text(file.read_text().replace(alice[0], f"{alice[0]} {words}"))
    keyed.live.service.keys = KeyRing.from_file(file)
    keyed.live.start()
    return keyed


@pytest.mark.parametrize("kind", ["completion", "message"])
def test_a_limit_is_a_429_of_the_dialect_and_others_go_on(tiny: str, tmp_path: Path, kind: str) -> None:
    path, body = {
        "completion": ("/v1/completions", completion_body()),
        "message": ("/v1/messages", message_body()),
    }[kind]
    keyed = limited(tiny, tmp_path, "requests=2/d requests=9/m")
    try:
        answers = [
            send(keyed.live.port, "POST", path, body, key=keyed.keys[who]) for who in ("alice", "alice2", "alice")
        ]
        other = send(keyed.live.port, "POST", path, body, key=keyed.keys["bob"])
        models = send(keyed.live.port, "GET", "/v1/models", key=keyed.keys["alice"])

        assert [answer.status for answer in answers] == [200, 200, 429]
        assert (other.status, models.status) == (200, 200)
        error = answers[2].json["error"]
        assert error["type"] == "rate_limit_error"
        assert "2 requests a day" in error["message"]
        assert 43_000 < int(answers[2].headers["retry-after"]) <= 43_200
        assert answers[0].headers["x-ratelimit-limit-requests"] == "9"
        assert answers[0].headers["anthropic-ratelimit-requests-remaining"] == "8"
        assert answers[2].headers["x-ratelimit-reset-requests"].endswith("s")
        assert "x-ratelimit-limit-requests" not in other.headers
        metrics = send(keyed.live.port, "GET", "/metrics", key=keyed.keys["ops"]).body
        assert b'foreword:requests_refused_total{model_name="tiny",reason="rate_limit"} 1.0' in metrics
        keyed.live.check_idle()
    finally:
        keyed.live.stop()


def test_tokens_read_from_cache_are_not_charged(tiny: str, tmp_path: Path) -> None:
    keyed = limited(tiny, tmp_path, "tokens=100000/d")

    def ask(text: str) -> int:
        body = completion_body(text, max_tokens=3, ignore_eos=True)
        assert send(keyed.live.port, "POST", "/v1/completions", body, key=keyed.keys["alice"]).status == 200
        answer = send(keyed.live.port, "POST", "/tokenize", {"model": "tiny", "prompt": "a"}, key=keyed.keys["alice"])
        return int(answer.headers["x-ratelimit-remaining-tokens"])

    try:
        left = [100_000, ask("x" * 50), ask("x" * 50)]

        charged = [before - after for before, after in itertools.pairwise(left)]
        assert charged[0] in (53, 52)  # the bucket fills a little meanwhile
        assert charged[1] in (1 + 3, 1 + 3 - 1, 1 + 3 - 2)
    finally:
        keyed.live.stop()


def test_a_pools_share_bounds_what_a_tenant_stores(tiny: str, tmp_path: Path) -> None:
    keyed = limited(tiny, tmp_path, "kv=10%")
    try:

        def read(who: str, text: str) -> int:
            answer = send(keyed.live.port, "POST", "/v1/completions", completion_body(text), key=keyed.keys[who])
            return int(answer.headers["foreword-cached-tokens"])

        read("bob", "b" * 300)
        for number in range(26):
            read("alice", chr(97 + number) * 300)

        stats: Any = keyed.live.run(keyed.live.service.engine.run(lambda engine: engine.stats()))
        share = math.floor(0.1 * stats.num_blocks) * 16
        assert stats.free_blocks > 0  # there would have been room
        assert read("alice", "a" * 300) < 299
        assert read("alice", "z" * 300) >= min(299, share) - 16
        assert read("bob", "b" * 300) == 299
    finally:
        keyed.live.stop()
