"""How much a tenant may ask: requests and tokens in a time, requests at once, and a share of the KV pool.

    requests=60/m      requests a minute            tokens=20000/m     tokens a minute
    requests=5000/d    requests a day               tokens=1000000/d   tokens a day
    concurrent=4       requests under way           kv=25%             most of the pool its prefixes may take

Each rate is a bucket that is full at the start, holds what one period allows, and fills evenly by a clock that never
jumps. Nothing is kept on disk: a restart fills every bucket, so it may give one period's allowance more, never less.

Tokens are charged as computed: a prompt's when it is taken on, the generated ones at the end, and what was read from
cache is given back. So a bucket may end below zero, by no more than the answers under way; then the tenant waits.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from foreword.core.errors import InvalidRequestError
from foreword.server.errors import ApiError

Kind = Literal["requests", "tokens"]
KINDS: dict[str, Kind] = {"requests": "requests", "tokens": "tokens"}
PERIODS = {"m": 60.0, "d": 86_400.0}
PERIOD_NAMES = {60.0: "minute", 86_400.0: "day"}
MAX_AMOUNT = 2**53
EXPECTED = "requests=N/m, requests=N/d, tokens=N/m, tokens=N/d, concurrent=N or kv=N%, each at most once"


class Rate(Struct, frozen=True):
    """So many of a kind in a time."""

    kind: Kind
    amount: int
    period_s: float


class TenantLimits(Struct, frozen=True):
    """What a tenant may ask; without limits, whatever the server takes."""

    rates: tuple[Rate, ...] = ()
    concurrent: int | None = None
    kv_share: float | None = None


NO_LIMITS = TenantLimits()


def parse_limits(words: Iterable[str], where: str) -> TenantLimits:
    """Read `NAME=VALUE` words of a line of the keys' file.

    Raises:
        InvalidRequestError: another form.
    """
    rates: dict[tuple[Kind, float], Rate] = {}
    single: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        amount, slash, unit = value.partition("/")
        kind = KINDS.get(name)
        if kind is not None and slash and unit in PERIODS:
            place = (kind, PERIODS[unit])
            if place not in rates:
                rates[place] = Rate(kind, _number(amount, MAX_AMOUNT, where), PERIODS[unit])
                continue
        elif name == "concurrent" and name not in single:
            single[name] = _number(value, MAX_AMOUNT, where)
            continue
        elif name == "kv" and value.endswith("%") and name not in single:
            single[name] = _number(value[:-1], 100, where) / 100
            continue
        raise InvalidRequestError(where, EXPECTED, word)
    concurrent = single.get("concurrent")
    return TenantLimits(tuple(rates.values()), None if concurrent is None else int(concurrent), single.get("kv"))


def _number(text: str, most: int, where: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 17 else 0
    if not 1 <= value <= most:
        raise InvalidRequestError(where, f"{EXPECTED}; N from 1 to {most}", text)
    return value


class Bucket:
    """A token bucket. `now` is monotonic time."""

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self._level = float(rate.amount)
        self._updated = now

    def level(self, now: float) -> float:
        """What may be taken; below zero after a debt."""
        gained = max(0.0, now - self._updated) * self.rate.amount / self.rate.period_s
        self._level = min(float(self.rate.amount), self._level + gained)
        self._updated = max(self._updated, now)
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken; 0 now. More than the bucket holds may be taken when it is full."""
        missing = min(amount, self.rate.amount) - self.level(now)
        return max(0.0, missing * self.rate.period_s / self.rate.amount)

    def take(self, amount: float, now: float) -> None:
        """Take, or give back what is negative; never beyond full."""
        self._level = min(float(self.rate.amount), self.level(now) - amount)


class _Account:
    """What one tenant has left."""

    def __init__(self, limits: TenantLimits, now: float) -> None:
        self.limits = limits
        self.buckets = [Bucket(rate, now) for rate in limits.rates]
        self.num_open = 0

    def of(self, kind: Kind) -> list[Bucket]:
        return [bucket for bucket in self.buckets if bucket.rate.kind == kind]


class Quotas:
    """The accounts of all tenants. Event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[bytes, _Account] = {}

    def enter(self, domain: bytes, limits: TenantLimits) -> "Permit | None":
        """Take a request on; None when the tenant has no limits. Changed limits begin with full buckets.

        Raises:
            ApiError: 429, with the time after which it is worth asking again.
        """
        permit = self.check(domain, limits)
        if permit is not None:
            permit.charge("requests", 1)
            self._accounts[domain].num_open += 1
            permit.is_open = True
        return permit

    def check(self, domain: bytes, limits: TenantLimits) -> "Permit | None":
        """What `enter` would do, and nothing is charged: the permit is not open. Raises what `enter` does."""
        account = self._accounts.get(domain)
        if limits == NO_LIMITS:
            return None
        if account is None or account.limits != limits:
            fresh = _Account(limits, self._clock())
            fresh.num_open = 0 if account is None else account.num_open
            account = self._accounts[domain] = fresh
        permit = Permit(self, domain, self._clock)
        if limits.concurrent is not None and account.num_open >= limits.concurrent:
            raise permit.refusal(f"{limits.concurrent} requests at once", 1.0)
        permit.check("requests", 1)
        return permit

    def account(self, domain: bytes) -> _Account:
        """A tenant's account."""
        return self._accounts[domain]


class Permit:
    """One request's leave to be answered."""

    def __init__(self, quotas: Quotas, domain: bytes, clock: Callable[[], float]) -> None:
        self._quotas = quotas
        self._domain = domain
        self._clock = clock
        self.is_open = False

    def take(self, kind: Kind, amount: int) -> None:
        """Charge, if every bucket of the kind has as much.

        Raises:
            ApiError: 429; nothing was charged.
        """
        self.check(kind, amount)
        self.charge(kind, amount)

    def check(self, kind: Kind, amount: int) -> None:
        """Raise what `take` would."""
        now = self._clock()
        for bucket in self._quotas.account(self._domain).of(kind):
            wait = bucket.wait_s(amount, now)
            if wait > 0:
                period = PERIOD_NAMES[bucket.rate.period_s]
                raise self.refusal(f"{bucket.rate.amount} {kind} a {period}", wait)

    def charge(self, kind: Kind, amount: int) -> None:
        """Charge, or give back what is negative, whatever is left."""
        now = self._clock()
        for bucket in self._quotas.account(self._domain).of(kind):
            bucket.take(amount, now)

    def leave(self) -> None:
        """The request is over. Harmless when said twice."""
        if self.is_open:
            self.is_open = False
            self._quotas.account(self._domain).num_open -= 1

    def refusal(self, limit: str, wait_s: float) -> ApiError:
        """What a client is told that has reached a limit."""
        headers = {"retry-after": str(max(1, math.ceil(wait_s)))}
        return ApiError(429, f"rate limit reached: {limit}", None, "rate_limit_exceeded", headers | self.headers())

    def headers(self) -> dict[str, str]:
        """What is left, in OpenAI's and in Anthropic's headers; of the shortest time where there are several."""
        now, told = self._clock(), {}
        for bucket in sorted(self._quotas.account(self._domain).buckets, key=lambda b: -b.rate.period_s):
            kind, limit, left = bucket.rate.kind, bucket.rate.amount, max(0, math.floor(bucket.level(now)))
            wait = bucket.wait_s(limit, now)
            told[f"x-ratelimit-limit-{kind}"] = told[f"anthropic-ratelimit-{kind}-limit"] = str(limit)
            told[f"x-ratelimit-remaining-{kind}"] = told[f"anthropic-ratelimit-{kind}-remaining"] = str(left)
            told[f"x-ratelimit-reset-{kind}"] = f"{wait:.3f}s"
            told[f"anthropic-ratelimit-{kind}-reset"] = _timestamp(wait)
        return told


def _timestamp(wait_s: float) -> str:
    """RFC 3339, for people's clocks: nothing here is decided by it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(math.ceil(time.time() + wait_s)))
