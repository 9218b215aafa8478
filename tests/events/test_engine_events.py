"""From the engine to the wire: told after every change, nothing kept when nobody asked, one endpoint through `LLM`."""

import msgspec
import pytest

from foreword import LLM, ForewordError, InvalidRequestError, SamplingParams
from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.engine.engine import Engine
from foreword.events.encoder import EventEncoder
from foreword.events.mirror import EventMirror
from foreword.events.options import EventOptions
from foreword.kv_cache.events import AllBlocksCleared, BlockStored, CacheEvent
from foreword.ops.cpu import CpuBackend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner
from tests.factories import tiny_model
from tests.smollm2 import SMOLLM2, needs_smollm2

Numbered = list[tuple[int, CacheEvent]]


@pytest.fixture
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    backend = CpuBackend(num_threads=1)
    model = tiny_model(tmp_path_factory.mktemp("model"), backend)
    return ModelRunner(model, backend, KVStorage(model.config, CACHE), CACHE.block_size, 64)


CACHE = CacheConfig(num_blocks=24, prefix_cache="radix", debug=True)
SCHEDULER = SchedulerConfig(max_model_len=300, token_budget=64)


def ask(engine: Engine, name: str, length: int, max_tokens: int = 4) -> None:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    engine.add(name, [(7 * i + len(name)) % 250 for i in range(length)], params)


def test_every_change_is_told_at_once_and_in_one_batch(runner: ModelRunner) -> None:
    batches: list[Numbered] = []
    engine = Engine(runner, CACHE, SCHEDULER, publish_events=batches.append)

    ask(engine, "a", 100)
    engine.step()
    assert [len(event.block_hashes) for _, event in batches.pop() if isinstance(event, BlockStored)] == [4]
    engine.step()
    assert len(batches.pop()) == 1
    engine.step()
    assert batches == []  # a decode step that fills no block
    engine.abort("a")
    engine.reset_cache()

    assert [type(event) for _, event in batches.pop()] == [AllBlocksCleared]
    numbers = [number for batch in batches for number, _ in batch]
    assert numbers == list(range(2, 2 + len(numbers)))


def test_a_mirror_of_the_engine_knows_what_the_engine_would_hit(runner: ModelRunner) -> None:
    encoder, mirror, sent = EventEncoder(), EventMirror(), 0

    def receive(events: Numbered) -> None:
        nonlocal sent
        mirror.receive(sent, encoder.encode(0.0, [event for _, event in events]))
        sent += 1

    engine = Engine(runner, CACHE, SCHEDULER, publish_events=receive)
    for round_ in range(12):
        ask(engine, "x" * (round_ % 5 + 1), 20 * (round_ % 7 + 1), max_tokens=20)
        for _ in range(8):
            engine.step()
    while engine.has_unfinished:
        engine.step()

    stats = engine.stats()
    assert stats.evicted_blocks > 0
    assert stats.hit_tokens > 0
    assert mirror.hashes == set(engine._manager.prefix_cache.stored_hashes())  # type: ignore[attr-defined]


def test_without_a_publisher_no_event_is_made(runner: ModelRunner) -> None:
    engine = Engine(runner, CACHE, SCHEDULER)

    ask(engine, "a", 100)
    engine.step()

    assert engine._events is None
    assert list(engine._manager.prefix_cache.stored_hashes()) == []  # type: ignore[attr-defined]


def test_events_without_a_prefix_cache_are_refused_before_anything_is_read() -> None:
    for off in ({"prefix_cache": "none"}, {"kv_cache": False}):
        with pytest.raises(InvalidRequestError, match="kv_events"):
            LLM("no-such-model.gguf", kv_events="tcp://127.0.0.1:*", **off)
    with pytest.raises(InvalidRequestError, match="kv_events"):
        LLM("no-such-model.gguf", kv_events="tcp://*:5557")


def test_a_model_that_does_not_load_leaves_no_socket_behind() -> None:
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed; pip install 'foreword[events]'")
    with zmq.Context() as context, context.socket(zmq.PUB) as sock:
        port = sock.bind_to_random_port("tcp://127.0.0.1")
    endpoint = f"tcp://127.0.0.1:{port}"

    for _ in range(2):
        with pytest.raises(ForewordError, match="no-such-model"):
            LLM("no-such-model.gguf", kv_events=EventOptions(endpoint=endpoint, replay_endpoint="tcp://127.0.0.1:*"))


@needs_smollm2
def test_an_llm_publishes_what_it_stores() -> None:
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed; pip install 'foreword[events]'")
    mirror = EventMirror()
    prompt = {"prompt_token_ids": list(range(1000, 1100))}
    with (
        LLM(SMOLLM2, max_model_len=512, kv_memory_bytes=32 << 20, kv_events="tcp://127.0.0.1:*") as llm,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as client,
    ):
        assert llm.events is not None
        llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1))
        client.set(zmq.RCVTIMEO, 10_000)
        client.connect(llm.events.replay_endpoint)
        while not mirror.hashes:
            client.send_multipart([b"", bytes(8)])
            while True:
                _, _, sequence, payload = client.recv_multipart()
                if not payload:
                    break
                mirror.receive(int.from_bytes(sequence, "big"), payload, replayed=True)
                stored = msgspec.msgpack.decode(payload)[1][0]

    assert len(mirror.hashes) == 6
    assert stored["token_ids"] == prompt["prompt_token_ids"][:96]
    assert "extra_keys" not in stored
