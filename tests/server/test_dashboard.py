"""The dashboard shows what the server tells: every metric in it exists, and none is left out."""

import json
import re
from pathlib import Path

from foreword.server.limits import Limits
from tests.server.conftest import StartServer
from tests.server.wire import completion_body, send

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
NAME = re.compile(r"\b(?:vllm|foreword):\w+")


def test_every_metric_of_the_dashboard_exists_and_every_one_that_exists_is_shown(start_server: StartServer) -> None:
    live = start_server(limits=Limits(response_cache_bytes=1 << 20, max_queued_requests=1))
    assert send(live.port, "POST", "/v1/completions", completion_body(["a"] * 3)).status == 200
    live.service.metrics.refused("queue_full")
    text = send(live.port, "GET", "/metrics").body.decode()
    samples = set(re.findall(r"^((?:vllm|foreword):\w+)", text, re.MULTILINE))
    labels = {name: set(re.findall(rf"^{name}\{{(.*)\}}", text, re.MULTILINE)) for name in samples}

    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    shown = {name for expression in expressions for name in NAME.findall(expression)}

    assert not shown - samples
    counted = {name for name in samples if not name.endswith(("_sum", "_count"))}
    assert not counted - shown
    for expression in expressions:
        for label in re.findall(r"by \((\w+)\)", expression):
            (name,) = NAME.findall(expression)
            assert any(f'{label}="' in line for line in labels[name]), expression


def test_its_panels_lie_beside_one_another() -> None:
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]

    assert len(set(places)) == len(places) == len({p["id"] for p in DASHBOARD["panels"]})
