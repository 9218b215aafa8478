"""`GET /doctor`: the operator's alone, true of the engine as it stands, and without a word of what callers said."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from foreword.core.types import BlockId
from foreword.engine.traffic import TrafficSummary
from foreword.server.doctor_routes import MIN_REQUESTS, findings_of
from foreword.server.doctor_routes import examine as examine_engine
from tests.server.conftest import Keyed, LiveServer
from tests.server.wire import completion_body, send

OPENING = "A system text that every request of this test has in common, long enough for several blocks. "


def check_up(keyed: Keyed) -> dict[str, Any]:
    answer = send(keyed.live.port, "GET", "/doctor", key=keyed.keys["ops"])
    assert answer.status == 200
    report = answer.json
    assert isinstance(report, dict)
    return report


def by_check(report: Mapping[str, Any]) -> dict[str, Any]:
    return {entry["check"]: entry for entry in report["checks"]}


def test_it_is_the_operators_alone(keyed: Keyed, server: LiveServer) -> None:
    assert send(keyed.live.port, "GET", "/doctor").status == 401
    assert send(keyed.live.port, "GET", "/doctor", key=keyed.keys["alice"]).status == 403
    assert send(server.port, "GET", "/doctor").status == 403
    assert send(keyed.live.port, "GET", "/doctor", key=keyed.keys["ops"]).status == 200


def test_a_sound_server_has_nothing_to_fix_and_tells_no_text(keyed: Keyed) -> None:
    before = check_up(keyed)["traffic"]
    for number in range(3):
        body = completion_body(f"{OPENING}Secret {number}, and so on")
        assert send(keyed.live.port, "POST", "/v1/completions", body, key=keyed.keys["bob"]).status == 200

    report = check_up(keyed)

    found, traffic = by_check(report), report["traffic"]
    assert report["ok"] is True
    assert set(found) == {
        *("version", "kernels", "KV cache", "paging", "prefix cache", "memory", "budgets", "invariants", "queue"),
        *("stability", "static first"),
    }
    assert found["invariants"]["status"] == "ok"
    assert traffic["num_requests"] - before["num_requests"] == 3
    assert traffic["hit_tokens"] - before["hit_tokens"] >= 2 * len(OPENING)
    assert sum(traffic["changed_at"]) - sum(before["changed_at"]) >= 2
    assert "Secret" not in json.dumps(report)


def test_broken_books_and_leaked_blocks_are_something_to_fix(keyed: Keyed) -> None:
    async def leak() -> None:
        await keyed.live.service.engine.run(lambda engine: engine._manager.pool.allocate(1))

    pool = keyed.live.service.loaded.engine._manager.pool
    keyed.live.run(leak())
    leaked = [BlockId(block) for block in range(pool.num_blocks) if pool.ref_count(block)]
    try:
        report = check_up(keyed)
    finally:
        pool.release(leaked)

    assert len(leaked) == 1
    assert report["ok"] is False
    assert by_check(report)["invariants"]["status"] == "fix"
    assert f"block {leaked[0]}" in by_check(report)["invariants"]["detail"]


@pytest.mark.parametrize(
    ("changed_at", "cause", "warned"),
    [
        ([MIN_REQUESTS, 0, 0, 0, 0, 0, 0, 0, 0, 1], "changed", {"stability", "static first"}),
        ([0, 0, 0, 0, 0, 0, 0, 0, 0, MIN_REQUESTS], "evicted", {"stability"}),
        ([2, 0, 0, 0, 0, 0, 0, 0, 0, 0], "evicted", {"stability"}),
    ],
)
def test_low_hit_rates_come_with_what_to_do(keyed: Keyed, changed_at: list[int], cause: str, warned: set[str]) -> None:
    snapshot = keyed.live.run(keyed.live.service.engine.run(examine_engine))
    traffic = TrafficSummary(
        num_requests=MIN_REQUESTS + 1,
        prompt_tokens=100 * (MIN_REQUESTS + 1),
        hit_tokens=100,
        num_by_cause={cause: MIN_REQUESTS, "none": 1},
        missed_by_cause={cause: 2000},
        changed_at=changed_at,
        prefill_tok_s=None,
    )
    changed = type(snapshot)(snapshot.stats, traffic, None)

    findings = {finding.check: finding for finding in findings_of(keyed.live.service, changed)}

    assert {check for check in ("stability", "static first") if findings[check].status == "warn"} == warned
    assert all(findings[check].cure for check in warned)
    assert f"{cause} {MIN_REQUESTS}" in findings["stability"].detail
