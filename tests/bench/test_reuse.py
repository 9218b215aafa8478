"""The rows about prefixes, on a tiny model: counts are exact, times are only there."""

from pathlib import Path

import pytest

from foreword.bench import reuse
from foreword.bench.bench import Bench
from foreword.llm import EngineOptions
from tests.cli.conftest import write_tokenizer
from tests.factories import tiny_model_files

_CHANCE = 8  # own tokens that may be alike by chance: the tokenizer has bytes for tokens


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    folder = tiny_model_files(tmp_path, vocab_size=257, max_position=4096)
    write_tokenizer(folder, ("</s>",))
    return Bench(folder, EngineOptions(max_model_len=4096), repeats=1)


def test_a_warm_prefix_is_read_from_the_cache(bench: Bench) -> None:
    metrics = reuse.warm(bench)

    assert 2000 <= metrics["cached_tokens"] < 2000 + _CHANCE  # type: ignore[operator]


def test_a_burst_reads_its_prefix_once(bench: Bench) -> None:
    metrics = reuse.burst(bench)

    assert metrics["prompt_tokens"] == 32 * (1024 + 64)
    assert metrics["prefilled_tokens"] + metrics["cached_tokens"] == metrics["prompt_tokens"]  # type: ignore[operator]
    assert 1024 + 32 * (64 - _CHANCE) < metrics["prefilled_tokens"] <= 1024 + 32 * 64  # type: ignore[operator]


def test_prefixes_in_turn_do_not_push_each_other_out(bench: Bench) -> None:
    metrics = reuse.interleaved(bench)

    by_round = metrics["cached_tokens_by_round"]
    assert isinstance(by_round, list)
    assert 1000 <= metrics["cached_tokens"] < 1000 + _CHANCE  # type: ignore[operator]
    assert by_round[0] < 8 * _CHANCE < 8000 <= min(by_round[1:])


def test_without_a_prefix_cache_nothing_is_cached(tmp_path: Path) -> None:
    folder = tiny_model_files(tmp_path, vocab_size=257, max_position=4096)
    write_tokenizer(folder, ("</s>",))

    metrics = reuse.warm(Bench(folder, EngineOptions(prefix_cache="none"), repeats=1))

    assert metrics["cached_tokens"] == 0
