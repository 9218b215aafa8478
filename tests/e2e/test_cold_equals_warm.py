"""Cold = warm: every hit is counted to the token, and every row of logits has the bits of a run from nothing.

200 prompts at, one below and one above a block border, and of any length. Each prompt has a namespace of its own, so
that what it hits is what its case stored. A cold run is the oracle's: the tokens alone, in one piece, over private K/V.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.factories import tiny_model
from tests.oracles.naive_prefix_cache import NaivePrefixCache
from tests.oracles.recording import RecordedEngine, check_bits

from foreword.core.config import CacheConfig, KVDtype, PrefixCacheKind, SchedulerConfig
from foreword.models.base import Model
from foreword.ops.cpu import CpuBackend

VOCAB = 64
SIZE = 16
KINDS: tuple[PrefixCacheKind, ...] = ("radix", "hash")


def prompts() -> list[tuple[bytes, list[int]]]:
    """Namespace and tokens of each prompt: 100 around the borders of 1 to 6 blocks, 100 of 2 to 100 tokens."""
    rng = np.random.default_rng(0)
    borders = [SIZE * k + d for k in range(1, 7) for d in (-1, 0, 1)]
    lengths = [borders[i % len(borders)] for i in range(100)] + rng.integers(2, 101, 100).tolist()
    return [(b"%d" % i, rng.integers(0, VOCAB, length).tolist()) for i, length in enumerate(lengths)]


PROMPTS = prompts()


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return CpuBackend(num_threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, backend: CpuBackend) -> Model:
    folder: Path = tmp_path_factory.mktemp("model")
    return tiny_model(folder, backend, weight_dtype="q4", vocab_size=VOCAB)


@pytest.fixture(params=[*((kind, "int16") for kind in KINDS), ("radix", "int8"), ("hash", "f16")], ids="-".join)
def circumstances(request: pytest.FixtureRequest) -> tuple[PrefixCacheKind, KVDtype]:
    found: tuple[PrefixCacheKind, KVDtype] = request.param
    return found


@pytest.fixture
def kind(circumstances: tuple[PrefixCacheKind, KVDtype]) -> PrefixCacheKind:
    return circumstances[0]


@pytest.fixture
def kv_dtype(circumstances: tuple[PrefixCacheKind, KVDtype]) -> KVDtype:
    return circumstances[1]


def make_engine(
    model: Model, backend: CpuBackend, kind: PrefixCacheKind, kv_dtype: KVDtype, num_blocks: int = 160
) -> RecordedEngine:
    cache = CacheConfig(num_blocks=num_blocks, kv_dtype=kv_dtype, prefix_cache=kind, debug=True)
    return RecordedEngine(model, backend, cache, SchedulerConfig(max_num_seqs=12, max_model_len=400))


@pytest.fixture
def engine(model: Model, backend: CpuBackend, kind: PrefixCacheKind, kv_dtype: KVDtype) -> Iterator[RecordedEngine]:
    """Compares every row it computed when the test is over."""
    engine = make_engine(model, backend, kind, kv_dtype)
    yield engine
    check_bits(engine.recorder, model, kv_dtype, chunk=128)


def stored(kind: PrefixCacheKind, num_tokens: int) -> int:
    """How much of a stored run of that many tokens an index finds."""
    return num_tokens if kind == "radix" else num_tokens // SIZE * SIZE


def part(tokens: list[int], length: int) -> list[int]:
    """The first `length` tokens, then others than those that followed."""
    return tokens[:length] + [(token + 1) % VOCAB for token in tokens[length:]] + [0]


def test_a_full_hit(engine: RecordedEngine, kind: PrefixCacheKind) -> None:
    for namespace, tokens in PROMPTS:
        answers = [engine.ask(tokens, namespace=namespace) for _ in range(4)]

        expected = stored(kind, len(tokens) - 1)
        assert [answer.usage.cached_tokens for answer in answers] == [0, expected, expected, expected]
        assert all(len(answer.tokens[0]) == 2 for answer in answers)


def test_a_partial_hit_inside_a_block(engine: RecordedEngine, kind: PrefixCacheKind) -> None:
    copied = 0
    for namespace, tokens in PROMPTS:
        shared = max(1, len(tokens) * 2 // 3)
        shared -= shared % SIZE == 0
        engine.ask(tokens, namespace=namespace)
        before = engine.engine.stats().copied_blocks

        answer = engine.ask(part(tokens, shared), namespace=namespace)

        assert answer.usage.cached_tokens == stored(kind, shared)
        copied += engine.engine.stats().copied_blocks - before
    assert copied == (len(PROMPTS) if kind == "radix" else 0)


def test_after_eviction_and_refill(model: Model, backend: CpuBackend, kind: PrefixCacheKind, kv_dtype: KVDtype) -> None:
    engine = make_engine(model, backend, kind, kv_dtype, num_blocks=12)
    rng = np.random.default_rng(1)
    for namespace, tokens in PROMPTS:
        engine.ask(tokens, namespace=namespace)
        assert engine.would_hit(tokens, namespace) == stored(kind, len(tokens) - 1)
        while engine.would_hit(tokens, namespace):
            engine.ask(rng.integers(0, VOCAB, 180).tolist(), namespace=b"flood", max_tokens=1)

        refilled, warm = (engine.ask(tokens, namespace=namespace) for _ in range(2))

        assert (refilled.usage.cached_tokens, warm.usage.cached_tokens) == (0, stored(kind, len(tokens) - 1))
    assert engine.engine.stats().evicted_blocks > 12 * len(PROMPTS)
    check_bits(engine.recorder, model, kv_dtype, chunk=256)


def test_after_a_fork(engine: RecordedEngine, kind: PrefixCacheKind) -> None:
    oracle = NaivePrefixCache(1 if kind == "radix" else SIZE)
    for seed, (namespace, tokens) in enumerate(PROMPTS):
        forked = engine.ask(tokens, namespace=namespace, n=3, temperature=1.0, seed=seed, max_tokens=6)
        assert forked.usage.cached_tokens == 0
        for continuation in forked.tokens:
            oracle.store(namespace, tokens + continuation[:-1])  # the last one is drawn and never computed

        for index, continuation in enumerate(forked.tokens):
            turn = [*tokens, *continuation, index]
            expected = oracle.match(namespace, turn, len(turn) - 1)
            assert engine.ask(turn, namespace=namespace, max_tokens=1).usage.cached_tokens == expected
            assert expected >= stored(kind, len(tokens) + 5)
            oracle.store(namespace, turn)


def test_in_a_batch_of_full_and_partial_hits_misses_and_twins(engine: RecordedEngine, kind: PrefixCacheKind) -> None:
    for first in range(0, len(PROMPTS), 10):
        group = PROMPTS[first : first + 10]
        warm, cold = group[:8], group[8:]
        for namespace, tokens in warm:
            engine.ask(tokens, namespace=namespace)

        full = [engine.add(tokens, namespace=namespace) for namespace, tokens in warm[::2]]
        halves = [engine.add(part(tokens, len(tokens) // 2), namespace=namespace) for namespace, tokens in warm[1::2]]
        twins = [[engine.add(tokens, namespace=namespace) for _ in range(2)] for namespace, tokens in cold]
        engine.run()

        assert [a.usage.cached_tokens for a in full] == [stored(kind, len(t) - 1) for _, t in warm[::2]]
        assert [a.usage.cached_tokens for a in halves] == [stored(kind, len(t) // 2) for _, t in warm[1::2]]
        for (_, tokens), (leader, follower) in zip(cold, twins, strict=True):
            # while the leader runs, its whole blocks can be found; below a block and a token nobody waits for them
            shared = min(len(tokens) - 1, len(tokens) // SIZE * SIZE)
            assert leader.usage.cached_tokens == 0
            assert follower.usage.cached_tokens == (stored(kind, shared) if len(tokens) > SIZE else 0)
