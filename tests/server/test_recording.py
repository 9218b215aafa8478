"""A recorded trace has no words in it, and replayed it finds what the engine found: difference 0."""

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from foreword.core.config import CacheConfig, PrefixCacheKind
from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.core.sequence import Usage
from foreword.llm.outputs import RequestOutput
from foreword.replay.index_replay import IndexReplay
from foreword.replay.prefix_tree import PrefixTree
from foreword.replay.scheduler_replay import SchedulerReplay
from foreword.replay.tally import Tally
from foreword.replay.trace import Trace, TraceOptions
from foreword.server import recording
from foreword.server.limits import Limits
from foreword.server.recording import MAX_PENDING_TOKENS, TraceRecorder
from tests.server.conftest import LiveServer, StartServer
from tests.server.wire import chat_body, completion_body, message_body, send

BLOCK = 16


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def predicted(path: Path, kind: PrefixCacheKind, **options: Any) -> list[Tally]:
    """The same trace through index, scheduler, and a cache without bounds."""
    trace = Trace(path, TraceOptions(**options))
    config = CacheConfig(num_blocks=4096, block_size=trace.layout.index_block, prefix_cache=kind)
    index, scheduler = IndexReplay(config, trace.layout), SchedulerReplay(config, trace.layout)
    tree = PrefixTree(trace.layout)
    for request in trace.requests():
        index.run(request)
        scheduler.run(request)
        tree.add(request)
    return [index.tally, scheduler.tally, tree.unbounded]


def ask_of_everything(live: LiveServer, seed: int) -> None:
    """Prompts that share beginnings of any length, and conversations that go on behind the answers they were given."""
    rng = random.Random(seed)
    asked = [[100 + rng.randrange(100) for _ in range(90)] for _ in range(3)]
    for _ in range(30):
        ids = rng.choice(asked)[: rng.randint(1, 90)] + [rng.randrange(100, 103) for _ in range(rng.randrange(20))]
        body = completion_body(ids, max_tokens=rng.randint(1, 40), ignore_eos=True)
        assert send(live.port, "POST", "/v1/completions", body).status == 200
        asked.append(ids)
    messages = [{"role": "user", "content": "tell me"}]
    for _ in range(4):
        answer = send(live.port, "POST", "/v1/chat/completions", chat_body() | {"messages": messages, "max_tokens": 20})
        messages += [answer.json["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    send(live.port, "POST", "/v1/messages", message_body("tell me more", max_tokens=3))
    for text in ("tell me more", "tell"):
        send(live.port, "POST", "/v1/embeddings", {"model": "tiny", "input": text})


@pytest.mark.parametrize(("kind", "record_block"), [("hash", BLOCK), ("radix", 1), ("hash", 1)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replay_finds_what_the_engine_found(
    start_server: StartServer, tmp_path: Path, kind: PrefixCacheKind, record_block: int, seed: int
) -> None:
    live = start_server(prefix_cache=kind, block_size=BLOCK, kv_memory_bytes=8 << 20)
    file = tmp_path / "trace.jsonl"
    with TraceRecorder(file, record_block) as recorder:
        live.service.recorder = recorder
        ask_of_everything(live, seed)
        live.check_idle()
    stats = live.run(live.service.engine.run(lambda engine: engine.stats()))

    index, scheduler, unbounded = predicted(file, kind, block_size=BLOCK)

    assert stats.evicted_blocks == 0
    assert stats.cached_tokens > 500
    assert sum(line["cached_tokens"] for line in lines_of(file)) == stats.cached_tokens
    assert index.hit_tokens == scheduler.hit_tokens == stats.cached_tokens
    assert index.tokens == sum(line["num_tokens"] for line in lines_of(file))
    if kind == "hash":
        assert unbounded.hit_tokens == stats.cached_tokens


def test_nothing_of_the_text_is_in_it_and_no_two_runs_compare(start_server: StartServer, tmp_path: Path) -> None:
    live = start_server()
    files = [tmp_path / "first", tmp_path / "second"]
    prompt = "the secret word is rhubarb " * 4
    for file in files:
        with TraceRecorder(file, BLOCK) as recorder:
            live.service.recorder = recorder
            send(live.port, "POST", "/v1/completions", completion_body(prompt))
            live.check_idle()

    (first,), (second,) = lines_of(files[0]), lines_of(files[1])
    assert set(first) == {"time", "block_ids", "block_tokens", "num_tokens", "answer_tokens", "cached_tokens"}
    assert first["num_tokens"] == second["num_tokens"] == len(prompt)
    assert len(first["block_ids"]) == (len(prompt) + 3) // BLOCK
    assert not set(first["block_ids"]) & set(second["block_ids"])
    assert files[0].stat().st_mode & 0o077 == 0


def test_the_same_words_of_two_tenants_have_nothing_in_common(start_server: StartServer, tmp_path: Path) -> None:
    live = start_server()
    file = tmp_path / "trace"
    with TraceRecorder(file, BLOCK) as recorder:
        live.service.recorder = recorder
        for salt in ("one", "two", "one"):
            send(live.port, "POST", "/v1/completions", completion_body("a" * 100, cache_salt=salt))
        live.check_idle()

    one, two, again = [line["block_ids"] for line in lines_of(file)]
    assert one == again
    assert not set(one) & set(two)


def test_what_the_response_cache_answers_is_no_request_to_the_engine(start_server: StartServer, tmp_path: Path) -> None:
    live = start_server(limits=Limits(response_cache_bytes=1 << 20))
    file = tmp_path / "trace"
    with TraceRecorder(file, BLOCK) as recorder:
        live.service.recorder = recorder
        for _ in range(3):
            assert send(live.port, "POST", "/v1/completions", completion_body("a" * 40)).status == 200
        live.check_idle()

    assert len(lines_of(file)) == 1


def test_a_trace_that_cannot_be_written_is_refused_and_a_bad_size_too(tmp_path: Path) -> None:
    with pytest.raises(ForewordError, match="--record"):
        TraceRecorder(tmp_path / "no" / "such" / "folder", BLOCK)
    with pytest.raises(InvalidRequestError, match="record_block"):
        TraceRecorder(tmp_path / "trace", 0)


def test_a_full_disk_ends_the_recording_and_nothing_else(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    live = start_server()
    with TraceRecorder(full, BLOCK) as recorder:
        live.service.recorder = recorder
        for number in range(20):
            assert send(live.port, "POST", "/v1/completions", completion_body(f"{number}" * 50)).status == 200
        live.check_idle()
    assert recorder.num_left_out == 20
    told = [(record.levelname, record.message, record.fields) for record in caplog.records if "trace" in record.message]  # type: ignore[attr-defined]  # ours
    assert told == [
        ("ERROR", "the trace is no longer recorded", {"file": "/dev/full", "reason": "No space left on device"}),
        ("WARNING", "requests are missing in the recorded trace", {"file": "/dev/full", "requests": 20}),
    ]


def noted(recorder: TraceRecorder, num_requests: int, num_tokens: int = 100) -> None:
    """Requests as a server notes them."""
    for number in range(num_requests):
        prompt = [number] * num_tokens
        recorder.note(b"", 0.0, [RequestOutput("r", None, prompt, [], usage=Usage(computed_tokens=num_tokens))])


@pytest.mark.parametrize("room", [0, 1, 100, 1000, 1001, 1500])
def test_a_disk_that_becomes_full_within_a_line_keeps_whole_lines(
    tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that takes so many bytes: a short write, then none."""
    file, left, write = tmp_path / "trace", room, os.write

    def write_some(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_taken = write(descriptor, data[:left])
        left -= num_taken
        return num_taken

    with TraceRecorder(file, BLOCK) as recorder:
        monkeypatch.setattr(os, "write", write_some)
        noted(recorder, 20)
    monkeypatch.undo()

    assert len(lines_of(file)) == 20 - recorder.num_left_out < 20
    assert room - 250 <= file.stat().st_size <= room
    with TraceRecorder(file, BLOCK) as recorder:
        noted(recorder, 3)
    assert recorder.num_left_out == 0
    assert list(Trace(file, TraceOptions()).requests())


def test_what_a_killed_server_has_left_of_a_line_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    with TraceRecorder(file, BLOCK) as recorder:
        noted(recorder, 2)
    whole = file.read_bytes()
    begun = whole.splitlines(keepends=True)[1]
    for length in (1, 8, 9, len(begun) - 1):
        file.write_bytes(whole + begun[:length])
        with TraceRecorder(file, BLOCK):
            pass
        assert file.read_bytes() == whole
    long = whole + b'{"time":0.0,"block_ids":[' + b"1," * 100_000  # longer than is looked at first
    file.write_bytes(long)
    with TraceRecorder(file, BLOCK):
        pass
    assert file.read_bytes() == whole


def test_what_is_no_trace_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_bytes(b"first\nsecond")
    with pytest.raises(ForewordError, match="no line of a trace"):
        TraceRecorder(file, BLOCK)
    assert file.read_bytes() == b"first\nsecond"


def test_two_servers_do_not_record_into_one_file(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    with TraceRecorder(file, BLOCK), pytest.raises(ForewordError, match="another server"):
        TraceRecorder(file, BLOCK)
    with TraceRecorder(file, BLOCK):
        pass


def test_a_pipe_that_nobody_reads_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "_LAST_WRITES_S", 0.2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    recorder = TraceRecorder(pipe, 1)
    with recorder:
        noted(recorder, 20, num_tokens=2000)  # 20 bytes a token: more than a pipe holds
    assert [record.message for record in caplog.records] == ["the trace is no longer recorded"]
    os.close(reader)  # lets the thread end
    recorder._thread.join(10)
    assert not recorder._thread.is_alive()
    assert len(caplog.records) == 1


def test_what_waits_to_be_written_is_bounded(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "trace", BLOCK)  # its thread has not been started
    prompt = [1] * (MAX_PENDING_TOKENS // 4)
    output = RequestOutput("r", None, prompt, [], usage=Usage(computed_tokens=len(prompt)))

    recorder.note(b"", 0.0, [output] * 6)

    assert recorder.num_left_out == 2
    with recorder:
        pass
