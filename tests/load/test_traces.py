"""Traces sent to a live server: what they shared is shared again, and a recording of it predicts the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from foreword.core.config import CacheConfig
from foreword.core.errors import ForewordError
from foreword.load.traces import TraceLoad, TraceSessions
from foreword.replay.index_replay import IndexReplay
from foreword.replay.trace import Trace, TraceOptions
from foreword.server.recording import TraceRecorder
from tests.cli.conftest import Run
from tests.cli.conftest import run as run
from tests.cli.conftest import tiny as tiny
from tests.server.conftest import LiveServer, StartServer
from tests.server.conftest import start_server as start_server


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def sent(path: Path, **options: Any) -> list[list[dict[str, Any]]]:
    traced = TraceSessions(path, TraceLoad(model="m", **options))
    return [[json.loads(call.body) for call in session.calls] for session in traced.sessions()]


def test_blocks_with_the_same_ids_are_the_same_tokens(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace",
        {"block_ids": [7, 8], "block_tokens": 16, "num_tokens": 30},
        {"block_ids": [7, 2**62], "block_tokens": 16, "num_tokens": 40, "answer_tokens": 5},
    )

    (first,), (second,) = sent(path, speed=None)

    assert (len(first["prompt"]), len(second["prompt"])) == (30, 40)
    assert first["prompt"][:16] == second["prompt"][:16]
    assert first["prompt"][16] != second["prompt"][16] or first["prompt"][17] != second["prompt"][17]
    assert (first["max_tokens"], second["max_tokens"]) == (32, 5)


def test_a_prompts_end_that_no_block_covers_is_its_own(tmp_path: Path) -> None:
    line = {"block_ids": [1], "block_tokens": 16, "num_tokens": 30, "answer_tokens": 1}

    (first,), (second,) = sent(write(tmp_path / "trace", line, line), speed=None)

    assert first["prompt"][:16] == second["prompt"][:16]
    assert first["prompt"][16:] != second["prompt"][16:]


def test_blocks_may_be_spelt_shorter_than_they_were(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", {"hash_ids": [1, 2], "input_length": 1000, "output_length": 9, "timestamp": 0})

    ((body,),) = sent(path, block_size=16)

    assert len(body["prompt"]) == 1000 * 16 // 512
    assert body["max_tokens"] == 9


def test_token_ids_go_as_they_are(tmp_path: Path) -> None:
    ((body,),) = sent(write(tmp_path / "trace", {"token_ids": [5, 6], "namespace": "x"}))

    assert (body["prompt"], body["cache_salt"]) == ([5, 6], "x")


def test_a_conversation_asks_before_each_answer_it_was_given(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "it is 42"},
    ]

    (calls,) = sent(write(tmp_path / "trace", {"messages": messages}))

    assert [len(call["messages"]) for call in calls] == [2, 4]
    assert calls[1]["messages"][2:] == [
        {"role": "assistant", "content": '[{"name": "f"}]'},
        {"role": "user", "content": "42"},
    ]


def test_lines_are_due_in_order_of_their_times(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", *({"token_ids": [1], "time": time} for time in (30, 10, 20)))

    sessions = TraceSessions(path, TraceLoad(model="m", speed=10)).sessions()

    assert [session.start_s for session in sessions] == [0.0, 1.0, 2.0]


def test_a_conversations_requests_keep_their_distances(tmp_path: Path) -> None:
    requests = [[1, 16, 1, "a", 0, "b", [5, 1]], [4, 32, 1, "a", 0, "b", [5, 2]]]

    (session,) = TraceSessions(
        write(tmp_path / "trace", {"bs": 16, "r": requests}), TraceLoad(model="m", speed=2)
    ).sessions()

    assert session.offsets_s == (0.0, 1.5)


@pytest.mark.parametrize(
    "line",
    [{"nothing": 1}, {"token_ids": []}, {"block_ids": [1], "num_tokens": 0}, {"block_ids": [], "answer_tokens": 1}],
)
def test_what_cannot_be_sent_is_one_line(tmp_path: Path, line: Any) -> None:
    with pytest.raises(ForewordError, match="line 1"):
        sent(write(tmp_path / "trace", line))


def test_a_sent_trace_is_read_from_cache_as_the_replay_without_a_model_says(
    run: Run, start_server: StartServer, tmp_path: Path
) -> None:
    """Sent, recorded on the way, and both traces run through the cache alone: three times the same count."""
    given = [([1, 2, 3], 48), ([1, 2, 3, 4], 64), ([1, 9], 30), ([1, 2, 3, 4], 64), ([7], 16)]
    path = write(
        tmp_path / "trace",
        *({"block_ids": ids, "block_tokens": 16, "num_tokens": n, "answer_tokens": 1, "time": 0} for ids, n in given),
    )
    live: LiveServer = start_server(prefix_cache="hash", block_size=16)
    with TraceRecorder(tmp_path / "recorded", 16) as recorder:
        live.service.recorder = recorder
        ran = run("replay", str(path), "--url", live.url, "--speed", "max", "--at-once", "1", "--json")
        live.check_idle()
    stats = live.run(live.service.engine.run(lambda engine: engine.stats()))

    metrics = ran.json["metrics"]
    assert isinstance(metrics, dict)
    assert (metrics["requests"], metrics["errors"], metrics["format"]) == (5, {}, "blocks")
    assert metrics["cached_tokens"] == stats.cached_tokens == 48 + 16 + 48
    for file in (path, tmp_path / "recorded"):
        assert predicted(file) == stats.cached_tokens


def predicted(path: Path) -> int:
    trace = Trace(path, TraceOptions())
    config = CacheConfig(num_blocks=1000, block_size=trace.layout.index_block, prefix_cache="hash")
    index = IndexReplay(config, trace.layout)
    for request in trace.requests():
        index.run(request)
    return index.tally.hit_tokens


def test_conversations_go_through_chat_and_their_report_is_for_people(
    run: Run, start_server: StartServer, tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}] * 3
    path = write(tmp_path / "trace", *({"messages": turns} for _ in range(4)))
    live = start_server()

    ran = run("replay", str(path), "--url", live.url, "--at-once", "2", "--answer-tokens", "3", "--max-requests", "10")

    assert ran.code == 0
    assert "ttft_s[p50]" in ran.out
    assert live.service.metrics.num_ended == 10
