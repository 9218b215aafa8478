"""The whole of it: replay a log under each rule set, name what is lost and why, mend it, and replay again."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from foreword.lint.causes import Cause, Divergence, find_cause, lost_tokens
from foreword.lint.nearest import PartTree
from foreword.lint.repair import ADVICE, MARKERS, Repair, repair_for
from foreword.lint.request import LoggedRequest, parse_requests
from foreword.lint.rules import RULES, Breakpoints, Reading, RuleName
from foreword.lint.stored import StoredPrefixes

Source = Callable[[], Iterator[LoggedRequest]]
PackTokens = Callable[[LoggedRequest], bytes]
"""A request's prompt as int32 tokens."""

BYTES_A_TOKEN = 4
MIN_LOSS = 16  # tokens; what is less is no loss but the way prompts are
MAX_ROUNDS = 8  # repairs uncover what they hid; each round mends what the last one showed
MAX_PLACES = 1000  # findings told apart


def byte_tokens(request: LoggedRequest) -> bytes:
    """A token for every four bytes: no tokenizer needed, and exact to four bytes."""
    joined = b"".join([part.rendered for part in request.parts])
    return joined + b"\0" * (-len(joined) % BYTES_A_TOKEN)


class Score(Struct, frozen=True):
    """One rule set over a whole log. `cost` is in uncached input tokens."""

    rules: RuleName
    tokens: int
    read: int
    written: int

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that need not be computed."""
        return self.read / self.tokens if self.tokens else 0.0

    @property
    def cost(self) -> float:
        """What the input costs under the provider's multiples, in uncached input tokens."""
        rules = RULES[self.rules]
        rest = self.tokens - self.read - self.written
        return self.read * rules.read_price + self.written * rules.write_price + rest

    def money(self, price: float) -> float:
        """The same, at the price of a million uncached input tokens."""
        return self.cost * price / 1e6


class Finding(Struct):
    """One fault at one place, over all requests it strikes."""

    cause: Cause
    place: str
    count: int = 0
    lost_tokens: int = 0
    line: int = 0  # first request it was seen in
    earlier_line: int = 0  # the request it was compared with
    offset: int = 0  # characters into the text at `place`
    token: int = 0  # tokens into the prompt
    text: str = ""  # what differs, where showing text was asked for
    advice: str = ""
    gain_tokens: int | None = None  # what its repair gained when the log was replayed; None: there is no repair


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What a log can reuse now, what is in the way, and what it could reuse."""

    requests: int
    scores: tuple[Score, ...]
    findings: tuple[Finding, ...]
    repaired: tuple[Score, ...]
    repairs: tuple[Repair, ...] = dataclasses.field(default=(), repr=False)
    evicted_blocks: int = 0

    def score(self, rules: RuleName) -> Score:
        """One rule set's score as the log is."""
        return next(score for score in self.scores if score.rules == rules)

    def as_json(self, *, price: float | None = None) -> dict[str, object]:
        """For machines; with the price of a million uncached input tokens, in money too."""
        return {
            "requests": self.requests,
            "price": price,
            "rules": [_score_json(score, price) for score in self.scores],
            "repaired": [_score_json(score, price) for score in self.repaired],
            "findings": [asdict(finding) for finding in self.findings],
            "evicted_blocks": self.evicted_blocks,
        }


class Pass(Struct):
    """One reading of a log."""

    requests: int = 0
    tokens: int = 0
    reads: dict[RuleName, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    written: dict[RuleName, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    findings: dict[tuple[Cause, str], Finding] = field(default_factory=dict)
    repairs: dict[tuple[Cause, str], Repair] = field(default_factory=dict)
    boundaries: Counter[int] = field(default_factory=Counter)  # leading parts shared where another conversation begins
    evicted_blocks: int = 0

    def scores(self) -> tuple[Score, ...]:
        """Every rule set's."""
        return tuple(Score(name, self.tokens, self.reads[name], self.written[name]) for name in RULES)


def lint(source: Source, pack: PackTokens = byte_tokens, *, show_text: bool = False, repair: bool = True) -> Report:
    """Read a log, find what is lost and why, and replay it with each repair.

    Cost     one reading of the log, and one for every round of repairs.
    """
    first = latest = read(source, pack, show_text=show_text)
    findings = dict(first.findings)
    repairs: list[Repair] = []
    for _ in range(MAX_ROUNDS if repair else 0):
        fresh = _next_repairs(latest, repairs)
        if not fresh:
            break
        repairs += fresh
        before, latest = latest, read(mended(source, repairs), pack, show_text=show_text)
        _share_gain(findings, before, latest, fresh)
        for key, finding in latest.findings.items():
            if key not in findings:
                findings[key] = finding
    for finding in findings.values():
        finding.advice = ADVICE[finding.cause]
    ordered = sorted(findings.values(), key=lambda finding: -finding.lost_tokens)
    return Report(first.requests, first.scores(), tuple(ordered), latest.scores(), tuple(repairs), first.evicted_blocks)


def read(source: Source, pack: PackTokens, *, show_text: bool = False) -> Pass:
    """Replay a log once under every rule set."""
    result, stored, tree, breakpoints = Pass(), StoredPrefixes(), PartTree(), Breakpoints()
    for request in source():
        packed = pack(request)
        total = len(packed) // 4
        shared = stored.run(request.namespace, packed)
        before, parts_shared = tree.nearest(request)
        nodes = tree.add(request)
        sizes = _sizes(request, total)
        ends = list(accumulate(sizes))
        result.requests += 1
        result.tokens += total
        for name, rules in RULES.items():
            if name != "anthropic":
                result.reads[name] += rules.reachable(shared)
        reading = breakpoints.run(request, nodes, ends, shared)
        result.reads["anthropic"] += reading.read
        result.written["anthropic"] += reading.written
        is_explained = False
        if before is not None:
            is_explained = _note_divergence(result, before, request, parts_shared, sizes, shared, show_text)
            if parts_shared < len(before.parts):
                result.boundaries[parts_shared] += 1
        if reading.loss is not None and not is_explained:  # one reason a request: the first
            _note_loss(result, reading, request, before, shared)
    result.evicted_blocks = stored.evicted_blocks
    return result


def _next_repairs(found: Pass, made: Sequence[Repair]) -> list[Repair]:
    """What a pass showed and nothing has been done about: texts first, since markers depend on them."""
    done = {(mend.cause, mend.path, mend.before, mend.after, mend.members) for mend in made}
    fresh = [m for m in found.repairs.values() if (m.cause, m.path, m.before, m.after, m.members) not in done]
    texts = [mend for mend in fresh if mend.cause not in (*MARKERS, "ttl_passed")]
    if texts:
        return texts
    boundary = found.boundaries.most_common(1)[0][0] if found.boundaries else 0
    return [replace(mend, boundary=boundary) for mend in fresh]


def mended(source: Source, repairs: Sequence[Repair]) -> Source:
    """The same log as if it had been sent with the repairs."""

    def requests() -> Iterator[LoggedRequest]:
        for request in source():
            current = request
            for mend in repairs:
                fresh = next(iter(parse_requests(request.line, {"body": mend.apply(current)})))
                current = replace(fresh, dialect=request.dialect, tenant=request.tenant, time_s=request.time_s)
            yield current

    return requests


def _sizes(request: LoggedRequest, total: int) -> list[int]:
    """Tokens of each part, by its share of the bytes; together as many as the prompt has."""
    lengths = list(accumulate(len(part.rendered) for part in request.parts))
    whole = max(1, lengths[-1] if lengths else 1)
    ends = [total * length // whole for length in lengths]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _note_divergence(
    result: Pass,
    before: LoggedRequest,
    request: LoggedRequest,
    parts_shared: int,
    sizes: Sequence[int],
    shared: int,
    show_text: bool,
) -> bool:
    """Name the fault behind a divergence, if there is one that costs something; returns whether there is."""
    at = find_cause(before, request, parts_shared)
    # A part is sized by its share of the bytes; what was read from the cache is certain, and not lost.
    lost = 0 if at is None else min(lost_tokens(before, request, at, sizes), sum(sizes) - shared)
    if at is None or lost < MIN_LOSS:
        return False
    part = request.parts[at.index]
    place = _first_place(result, at.cause) if part.section == "tools" else None  # tools stand or fall together
    finding = _note(result, at.cause, place or part.place, request, before, lost)
    if finding.count == 1:
        finding.offset, finding.token = at.start, shared
        finding.text = part.text[at.start : at.end][:200] if show_text else ""
    mend = _repair(before, request, at)
    if mend is not None and at.cause == "unstable_few_shots":
        _note_examples(result, mend, before, request)
    elif mend is not None:
        result.repairs.setdefault((at.cause, part.place), mend)
    return True


def _note_examples(result: Pass, mend: Repair, before: LoggedRequest, request: LoggedRequest) -> None:
    """Keep the pair of requests with the least in common: those of two conversations, which share examples alone."""
    there = {part.text for part in before.parts}
    members = frozenset(part.text for part in request.parts if part.section == "messages" and part.text in there)
    known = result.repairs.get((mend.cause, ""))
    if known is None or len(members) < len(known.members):
        result.repairs[mend.cause, ""] = replace(mend, members=members)


def _note_loss(
    result: Pass, reading: Reading, request: LoggedRequest, before: LoggedRequest | None, shared: int
) -> None:
    """Something that was sent before and that Anthropic's rules do not find; one finding a cause."""
    assert reading.loss is not None
    place = _first_place(result, reading.loss) or reading.place
    _note(result, reading.loss, place, request, before, max(0, shared - reading.read))
    mend = repair_for(reading.loss, (), "", "")
    if mend is not None:
        result.repairs.setdefault((reading.loss, ""), mend)


def _first_place(result: Pass, cause: Cause) -> str | None:
    return next((finding.place for finding in result.findings.values() if finding.cause == cause), None)


def _repair(before: LoggedRequest, request: LoggedRequest, at: Divergence) -> Repair | None:
    old = before.parts[at.index].text if at.index < len(before.parts) else ""
    return repair_for(at.cause, request.parts[at.index].path, old, request.parts[at.index].text)


def _note(
    result: Pass, cause: Cause, place: str, request: LoggedRequest, before: LoggedRequest | None, lost: int
) -> Finding:
    key = (cause, place if len(result.findings) < MAX_PLACES else "elsewhere")
    finding = result.findings.get(key)
    if finding is None:
        earlier = 0 if before is None else before.line
        finding = result.findings[key] = Finding(cause, key[1], line=request.line, earlier_line=earlier)
    finding.count += 1
    finding.lost_tokens += lost
    return finding


def _share_gain(findings: dict[tuple[Cause, str], Finding], before: Pass, after: Pass, fresh: Sequence[Repair]) -> None:
    """What a round gained, told to the findings it was for by what each had lost."""
    causes = {mend.cause for mend in fresh}
    rules: RuleName = "anthropic" if causes <= {*MARKERS, "ttl_passed"} else "exact"
    gain = (before.tokens - before.reads[rules]) - (after.tokens - after.reads[rules])  # tokens no longer computed
    struck = [finding for finding in findings.values() if finding.cause in causes and finding.gain_tokens is None]
    lost = sum(finding.lost_tokens for finding in struck) or 1
    for finding in struck:
        finding.gain_tokens = gain * finding.lost_tokens // lost


def _score_json(score: Score, price: float | None) -> dict[str, object]:
    money = None if price is None else round(score.money(price), 6)
    return {**asdict(score), "hit_rate": round(score.hit_rate, 6), "cost": round(score.cost, 1), "money": money}
