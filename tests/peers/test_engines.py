"""Engines are asked over HTTP and over pipes, and a fault of theirs has their name."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks.peers.engine import Answer, EngineError, ask_all
from benchmarks.peers.http_engine import Dialect, HTTPEngine, LlamaDialect, OpenAIDialect
from benchmarks.peers.pipe_engine import PipeEngine

HERE = Path(__file__).parent


def server(kind: str, dialect: Dialect, *flags: str) -> HTTPEngine:
    def command(port: int) -> Sequence[str]:
        return [sys.executable, str(HERE / "fake_server.py"), kind, "--port", str(port), *flags]

    return HTTPEngine(kind, command, dialect, {})


def worker(log: Path, *flags: str) -> PipeEngine:
    return PipeEngine("fake", [sys.executable, str(HERE / "fake_worker.py"), *flags], log, {"flags": "none"})


@pytest.fixture(params=["llama", "openai"])
def engine(request: pytest.FixtureRequest) -> Iterator[HTTPEngine]:
    dialect = LlamaDialect() if request.param == "llama" else OpenAIDialect("m")
    started = server(request.param, dialect)
    yield started
    started.close()


def test_an_answer_has_a_time_a_token_and_what_the_engine_counted(engine: HTTPEngine) -> None:
    answer = engine.ask([1, 2, 3], 4, logprobs=1)
    assert answer.text == "t0t1t2t3"
    assert answer.num_tokens == 4 == len(answer.times_s) == len(answer.logprobs)
    assert answer.times_s == sorted(answer.times_s)
    assert answer.times_s[-1] <= answer.total_s
    assert answer.cached_tokens == (3 if engine.name == "llama" else 5)
    assert set(answer.logprobs[1].values()) == {-0.5 if engine.name == "llama" else -0.25}


def test_a_start_ends_with_the_first_answer_and_memory_is_read_from_the_kernel(engine: HTTPEngine) -> None:
    assert engine.start_s > 0
    memory = engine.memory_mib()
    assert memory is not None
    assert 1 < memory < 1000


def test_answers_come_in_the_prompts_order_however_many_are_under_way(engine: HTTPEngine) -> None:
    answers = ask_all(engine, [[1]] * 5, 3, at_once=2)
    assert [answer.text for answer in answers] == ["t0t1t2"] * 5


def test_a_server_that_ends_is_named_with_its_last_line() -> None:
    with pytest.raises(EngineError, match=r"llama: ended with code 1: model: not what I read"):
        server("llama", LlamaDialect(), "--fail")


@pytest.mark.parametrize(("kind", "dialect"), [("llama", LlamaDialect()), ("openai", OpenAIDialect("m"))])
def test_an_error_in_a_stream_is_named(kind: str, dialect: Dialect) -> None:
    with pytest.raises(EngineError, match=rf"{kind}: .*a step took too long"):
        server(kind, dialect, "--error")


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match="gone: /nowhere/server: No such file"):
        HTTPEngine("gone", lambda port: ["/nowhere/server"], LlamaDialect(), {})


def test_another_number_of_tokens_than_asked_for_is_a_fault(
    engine: HTTPEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = engine._dialect
    monkeypatch.setattr(
        dialect, "body", lambda prompt, count, logprobs: type(dialect).body(dialect, prompt, 2, logprobs)
    )
    with pytest.raises(EngineError, match="asked for 3 tokens, 2 came"):
        engine.ask([1], 3)


def test_a_worker_answers_over_its_streams(tmp_path: Path) -> None:
    engine = worker(tmp_path / "log")
    try:
        assert engine.notes == {"flags": "none", "version": "fake 1.0"}
        answer = engine.ask([1], 3, logprobs=1)
        assert (answer.text, answer.num_tokens) == ("0 1 2 ", 3)
        assert answer.logprobs == [{"0": -1.0}, {"1": -1.0}, {"2": -1.0}]
    finally:
        engine.close()


def test_a_worker_that_ends_in_an_answer_is_named_with_its_last_line(tmp_path: Path) -> None:
    engine = worker(tmp_path / "log", "broken")
    try:
        with pytest.raises(EngineError, match="fake: the worker has ended: out of luck"):
            engine.ask([1], 9)
    finally:
        engine.close()


def test_decode_counts_the_tokens_after_the_first() -> None:
    answer = Answer(times_s=[1.0, 1.5, 2.0], num_tokens=3)
    assert (answer.ttft_s, answer.decode_tok_s) == (1.0, 2.0)


def test_a_run_that_is_terminated_takes_its_engine_along() -> None:
    code = """
import time
from benchmarks.peers.__main__ import end_in_order_when_terminated
from tests.peers.test_engines import server
from benchmarks.peers.http_engine import LlamaDialect
end_in_order_when_terminated()
engine = server("llama", LlamaDialect())
try:
    print(engine._process.pid, flush=True)
    time.sleep(60)
finally:
    engine.close()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        engine = int(run.stdout.readline())
        run.terminate()
        assert run.wait(timeout=30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)
