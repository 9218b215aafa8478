"""`GET /doctor`: a check-up of the running server, for its operator. No caller's text is in it."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.core.errors import InvariantError
from foreword.core.finding import Finding
from foreword.engine.engine import Engine
from foreword.engine.metrics import EngineStats
from foreword.engine.traffic import TrafficSummary
from foreword.llm.findings import cache_findings
from foreword.llm.machine import available_bytes, resident_bytes
from foreword.server.service import Service
from foreword.server.status_routes import json_response

MIN_REQUESTS = 20
"""With fewer requests in the last hour nothing is concluded from them."""

LOW_HIT_RATIO = 0.5
EARLY_TENTHS = 2  # tenths of a prompt in which what changes costs nearly all of it

_CURES = {
    "changed": "`foreword why` shows the token: put what changes behind what stays",
    "evicted": "raise --kv-memory: stored prefixes are pushed out before they are asked for again",
    "expired": "raise --kv-memory, or the lifetimes asked for",
    "never seen": "nothing stored to read: `/cache/warm` reads a common opening beforehand",
    "other namespace": "the same text comes with other keys or salts: what is common needs a common key name",
    "bypassed": "--prefix-cache radix",
}


class Snapshot(Struct, frozen=True):
    """The engine between two steps."""

    stats: EngineStats
    traffic: TrafficSummary
    broken: str | None  # the first invariant that does not hold

    @property
    def leaked_blocks(self) -> int:
        """Blocks still held although nothing waits or runs and no pin holds them: 0, or a bug."""
        stats = self.stats
        return 0 if stats.num_running or stats.num_waiting else stats.held_blocks - stats.pinned_blocks


def examine(engine: Engine) -> Snapshot:
    """Check and read everything. For the engine's thread. Cost: O(everything stored)."""
    broken = None
    try:
        engine.check_invariants()
    except InvariantError as error:
        broken = str(error)
    return Snapshot(engine.stats(), engine.traffic.summary(), broken)


def doctor_routes(service: Service) -> list[Route]:
    """The route, bound to a service."""

    async def doctor(request: Request) -> Response:
        snapshot = await service.engine.run(examine)
        findings = list(findings_of(service, snapshot))
        return json_response(
            {
                "ok": all(finding.status != "fix" for finding in findings),
                "checks": [asdict(finding) for finding in findings],
                "traffic": {**asdict(snapshot.traffic), "hit_ratio": snapshot.traffic.hit_ratio},
            }
        )

    return [Route("/doctor", doctor, methods=["GET"])]


def findings_of(service: Service, snapshot: Snapshot) -> Iterator[Finding]:
    """Every finding, most basic first."""
    from foreword import __version__

    summary = service.loaded.summary
    weights = "as in the file" if summary.weight_dtype == "auto" else summary.weight_dtype
    yield Finding("version", "ok", f"foreword {__version__}, {summary.model}, weights {weights}")
    yield _kernels(service)
    yield from cache_findings(summary)
    yield _memory(service, snapshot)
    yield _budgets(service)
    yield _invariants(snapshot)
    yield _queue(service, snapshot.stats)
    yield _stability(snapshot.traffic)
    yield _order(snapshot.traffic)


def _kernels(service: Service) -> Finding:
    summary = service.loaded.summary
    detail = f"{summary.backend} {summary.instruction_set}".strip() + f", {summary.threads} threads"
    if summary.backend == "reference":
        return Finding("kernels", "warn", detail, "--backend cpu is much faster")
    if summary.instruction_set == "scalar":
        return Finding("kernels", "warn", detail, "--instruction-set auto, or a machine with AVX2 or NEON")
    return Finding("kernels", "ok", detail)


def _memory(service: Service, snapshot: Snapshot) -> Finding:
    """Room for as many sequences as may run, at the lengths seen."""
    summary, traffic, stats = service.loaded.summary, snapshot.traffic, snapshot.stats
    wanted = stats.max_num_seqs
    if not traffic.num_requests:
        full = summary.kv_pool_tokens // summary.max_model_len
        return Finding("memory", "ok", f"room for {full} full-length sequences of {wanted}; no requests seen yet")
    prompt = traffic.prompt_tokens / traffic.num_requests
    answer = stats.sampled_tokens / max(1, service.metrics.num_ended)
    fits = int(summary.kv_pool_tokens / max(1.0, prompt + answer))
    detail = (
        f"room for {fits:,} sequences of the mean length seen ({prompt:,.0f} + {answer:,.0f} tokens), {wanted} may run"
    )
    if fits < wanted or stats.num_preemptions:
        detail += f", {stats.num_preemptions:,} preemptions" if stats.num_preemptions else ""
        return Finding("memory", "warn", detail, "raise --kv-memory, or lower --max-num-seqs")
    return Finding("memory", "ok", detail)


def _budgets(service: Service) -> Finding:
    pool, free = service.loaded.summary.kv_pool_bytes, available_bytes()
    mib = 2**20
    detail = (
        f"KV pool {pool / mib:,.1f} MiB in memory, the only tier; process {resident_bytes() / mib:,.1f} MiB, "
        f"free {free / mib:,.1f} MiB"
    )
    if free < pool // 20:
        return Finding("budgets", "warn", detail, "memory is nearly used up: lower --kv-memory or end other programs")
    return Finding("budgets", "ok", detail)


def _invariants(snapshot: Snapshot) -> Finding:
    stats = snapshot.stats
    books = f"{stats.free_blocks:,} free + {stats.cached_blocks:,} cached + {stats.held_blocks:,} held"
    if snapshot.broken is not None:
        return Finding("invariants", "fix", snapshot.broken, "restart the server, and report this: it is a bug")
    if snapshot.leaked_blocks:
        detail = f"{snapshot.leaked_blocks:,} blocks are held by nobody"
        return Finding("invariants", "fix", detail, "restart the server, and report this: it is a bug")
    return Finding("invariants", "ok", f"hold: {books} = {stats.num_blocks:,} blocks; holders and index agree")


def _queue(service: Service, stats: EngineStats) -> Finding:
    engine, admission = service.engine, service.admission
    detail = (
        f"{stats.num_running} running, {stats.num_waiting} waiting; "
        f"{admission.num_requests} of {service.limits.max_queued_requests} places taken"
    )
    if not service.is_healthy():
        return Finding("queue", "fix", f"a step hangs; {detail}", "restart the server, and report this")
    if engine.refusal is not None:
        return Finding("queue", "warn", f"{engine.refusal}; {detail}")
    if engine.step_failures:
        return Finding("queue", "warn", f"{engine.step_failures} steps failed; {detail}", "the log has their errors")
    if 2 * admission.num_requests > service.limits.max_queued_requests:
        return Finding("queue", "warn", detail, "more than half full: others will soon get 429")
    return Finding("queue", "ok", detail)


def _stability(traffic: TrafficSummary) -> Finding:
    if not traffic.num_requests:
        return Finding("stability", "ok", "no requests in the last hour")
    misses = ", ".join(f"{cause} {count:,}" for cause, count in traffic.num_by_cause.items() if cause != "none")
    detail = f"{traffic.hit_ratio:.0%} of prompt tokens found, {traffic.num_requests:,} requests in the last hour"
    detail += f"; ended by: {misses}" if misses else ""
    if traffic.num_requests < MIN_REQUESTS or traffic.hit_ratio >= LOW_HIT_RATIO:
        return Finding("stability", "ok", detail)
    dearest = max(traffic.missed_by_cause, key=lambda cause: traffic.missed_by_cause[cause])
    return Finding("stability", "warn", detail, _CURES.get(dearest))


def _order(traffic: TrafficSummary) -> Finding:
    """Whether prompts part late from what is stored, as they do when what is static comes first."""
    changed, early = sum(traffic.changed_at), sum(traffic.changed_at[:EARLY_TENTHS])
    if not changed:
        return Finding("static first", "ok", "no prompt parted from a stored one within it in the last hour")
    tenths = " ".join(str(count) for count in traffic.changed_at)
    detail = f"first differing token, by tenth of the prompt: {tenths}"
    if changed >= MIN_REQUESTS and 2 * early > changed:
        cure = "if these should share an opening, put dates, ids and user data behind what stays the same"
        return Finding("static first", "warn", detail, cure)
    return Finding("static first", "ok", detail)
