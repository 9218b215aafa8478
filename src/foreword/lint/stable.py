"""For test suites: requests that an application sends must share what they can."""

from collections.abc import Iterable

from foreword.lint.lint import lint
from foreword.lint.log import from_bodies


def assert_prefix_stable(requests: Iterable[object], *, min_hit_rate: float = 0.0, allow: Iterable[str] = ()) -> None:
    """Fail when requests, in the order in which they are sent, lose a prefix they could share.

    `requests` are bodies as sent: OpenAI chat, responses or completions, or Anthropic messages. `allow` names causes
    that are meant. `min_hit_rate` is the least share of tokens that an exact prefix cache must be able to reuse.

    Raises:
        AssertionError: names each fault, its place and what would mend it.
        ForewordError: one of `requests` is no request.

    Example:
        >>> from foreword.lint import assert_prefix_stable
        >>> first = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]}
        >>> assert_prefix_stable([first, first], min_hit_rate=0.4)
    """
    logged = from_bodies(requests)
    report = lint(lambda: iter(logged), repair=False)
    allowed = set(allow)
    faults = [finding for finding in report.findings if finding.cause not in allowed]
    lines = [
        f"{f.cause} at {f.place}, {f.offset} characters in (request {f.line} against {f.earlier_line}; "
        f"{f.lost_tokens} tokens lost in {f.count} requests): {f.advice}"
        for f in faults
    ]
    if report.score("exact").hit_rate < min_hit_rate:
        lines.append(f"hit rate {report.score('exact').hit_rate:.1%}, expected at least {min_hit_rate:.1%}")
    if lines:
        raise AssertionError("prefixes are not stable:\n  " + "\n  ".join(lines))
