"""`foreword bench serve` and `web`: loads on a running server, and on one of its own."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.server.conftest import LiveServer
from tests.server.conftest import _shared_server as _shared_server
from tests.server.conftest import server as server


def test_a_closed_loop_reports_the_servers_own_counts(run: Run, server: LiveServer) -> None:
    before = server.service.engine.stats
    row = run(
        "bench", "serve", "--url", server.url, "--requests", "24", "--streams", "4", "--duration", "60",
        "--prompt-tokens", "60", "--answer-tokens", "5", "--shared", "0.8", "--json",
    ).json  # fmt: skip
    after = server.run(server.service.engine.run(lambda engine: engine.stats()))

    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    assert (row["row"], row["model"], metrics["loop"]) == ("serve", "tiny", "closed, 4 streams")
    assert (metrics["requests"], metrics["complete"], metrics["errors"]) == (24, 24, {})
    assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (24 * 60, 24 * 5)
    assert metrics["cached_tokens"] == after.cached_tokens - before.cached_tokens
    assert metrics["cached_tokens"] >= 20 * 48  # all but those that came together at first
    assert metrics["hit_ratio"] == metrics["cached_tokens"] / metrics["prompt_tokens"]
    assert 0 < metrics["ttft_s"]["p50"] <= metrics["e2e_s"]["p50"]


def test_an_open_loop_through_chat_with_clients_that_misbehave(run: Run, server: LiveServer) -> None:
    ran = run(
        "bench", "serve", "--url", f"{server.url}/v1", "--rate", "200", "--requests", "100", "--chat",
        "--prompt-tokens", "20", "--answer-tokens", "4", "--leave", "0.2", "--garbage", "0.2", "--slo-ttft", "60",
        "--json",
    )  # fmt: skip

    metrics = ran.json["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["errors"] == {}
    assert metrics["left"] > 0
    assert metrics["garbage_refused"] > 0
    assert metrics["complete"] + metrics["left"] + metrics["garbage_refused"] == metrics["requests"] == 100
    assert metrics["goodput_per_second"] == metrics["requests_per_second"]


def test_lengths_come_from_a_trace(run: Run, server: LiveServer, tmp_path: Path) -> None:
    trace = tmp_path / "lengths.csv"
    trace.write_text("ContextTokens,GeneratedTokens\n30,2\n50,4\n")

    row = run("bench", "serve", "--url", server.url, "--trace", str(trace), "--requests", "4", "--json").json

    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (160, 12)


def test_a_server_of_its_own_is_started_and_ended(run: Run, tiny: str) -> None:
    ran = run(
        "bench", "serve", "--model", tiny, "--kv-memory", "4MiB", "--threads", "1", "--requests", "3",
        "--prompt-tokens", "9", "--answer-tokens", "2",
    )  # fmt: skip

    assert ran.code == 0
    assert "ttft_s[p99]" in ran.out
    assert ran.err == ""


def test_the_web_sides_share_is_measured_beside_the_engine_alone(run: Run, tiny: str) -> None:
    row = run("bench", "web", "--model", tiny, "--kv-memory", "4MiB", "--threads", "1", "--repeats", "1", "--json").json

    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["pairs"] == 5
    assert metrics["added_ttft_s_min"] <= metrics["added_ttft_s"] <= metrics["added_ttft_s_max"]
    assert metrics["alone_itl_s"] > 0


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--url", "ftp://x"), "url"),
        (("--url", "http://127.0.0.1:1"), "127.0.0.1:1"),
        (("--model", "no-such-model"), "no-such-model"),
        (("--streams", "0"), "streams"),
        (("--rate", "-1"), "rate"),
        (("--shared", "2"), "shared"),
        (("--prompt-tokens", "0"), "prompt_tokens"),
        (("--duration", "0"), "duration"),
    ],
)
def test_what_cannot_be_measured_is_one_line(run: Run, server: LiveServer, argv: tuple[str, str], told: str) -> None:
    url = () if argv[0] in ("--url", "--model") else ("--url", server.url)

    ran = run("bench", "serve", *url, *argv)

    assert ran.code == 2
    assert told in ran.err
    assert ran.out == ""


def test_options_of_the_model_reach_a_server_of_its_own(tiny: str) -> None:
    from foreword.cli.load_options import as_arguments
    from foreword.cli.options import KVDtype, ModelOptions

    options = ModelOptions(model=tiny, kv_dtype=KVDtype.f32, block_size=32, debug=True)

    assert as_arguments(options) == ["--model", tiny, "--kv-dtype", "f32", "--block-size", "32", "--debug"]
    assert json.dumps(as_arguments(ModelOptions())) == json.dumps(["--model", ModelOptions().model])
