"""SIGTERM with 32 answers running and 50 requests queued (R-22): each ends as it should, and so does the process."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import write_tokenizer
from tests.factories import tiny_model_files
from tests.server.crowd import Caller
from tests.server.process import ServerProcess, serving
from tests.server.wire import completion_body, send

pytestmark = pytest.mark.alone
RUNNING, QUEUED, ANSWER = 32, 50, 1000


@pytest.fixture
def roomy(tmp_path: Path) -> str:
    """A tiny model of 2,048 positions: its answers last a while."""
    folder = tiny_model_files(tmp_path / "roomy", vocab_size=258, max_position=2048)
    write_tokenizer(folder, ("<|im_start|>", "<|im_end|>"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return str(folder)


async def scene(server: ServerProcess) -> None:
    body = completion_body("go", stream=True, max_tokens=ANSWER, ignore_eos=True)
    running = [await Caller.ask(server.port, "/v1/completions", body) for _ in range(RUNNING)]
    for caller in running:
        await caller.head()
        await caller.events(1)
    queued = [await Caller.ask(server.port, "/v1/completions", body) for _ in range(QUEUED)]
    while await asyncio.to_thread(server.gauge, "vllm:num_requests_waiting") < QUEUED:
        await asyncio.sleep(0.02)
    assert await asyncio.to_thread(server.gauge, "vllm:num_requests_running") == RUNNING

    server.process.send_signal(signal.SIGTERM)

    refusals = [await caller.head() for caller in queued]
    assert [caller.status for caller in queued] == [503] * QUEUED
    assert all(int(refusal["retry-after"]) >= 1 for refusal in refusals)
    late = await asyncio.to_thread(send, server.port, "POST", "/v1/completions", completion_body())
    assert (late.status, late.headers["retry-after"]) == (503, "1")
    assert (await asyncio.to_thread(send, server.port, "GET", "/ready")).status == 503
    told = await asyncio.gather(*(caller.rest() for caller in running))
    assert all(b"[DONE]" in text and text.count(b'"finish_reason":"length"') == 1 for text in told)
    for caller in queued:
        assert b'"error"' in await caller.rest()


def test_those_who_run_finish_those_who_wait_are_told_and_the_process_ends_with_0(roomy: str) -> None:
    argv = ["--max-num-seqs", str(RUNNING), "--kv-memory", "64MiB", "--grace", "200", "--threads", "1"]
    with serving(roomy, *argv) as server:
        asyncio.run(scene(server))

        assert server.process.wait(20) == 0
