"""Figures that others published, from `config.json` alone."""

import json
from pathlib import Path

import pytest

from foreword.plan.geometry import Geometry, StoredAs, uniform
from foreword.plan.hf_geometry import read_hf_geometry
from foreword.plan.lengths import Lengths
from foreword.plan.plan import PlanOptions, RequestRow, make_plan
from tests.plan.models import CONFIGS

GIB = 2**30


def geometry_of(name: str, folder: Path) -> Geometry:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    return read_hf_geometry(path)


def one_request(geometry: Geometry, tokens: int) -> RequestRow:
    (row,) = make_plan(geometry, PlanOptions(memory_bytes=GIB, lengths=Lengths.of([tokens]), kv_dtype="f16")).requests
    return row


def test_the_issue_of_the_foundations() -> None:
    # LLaMA-2-70B at 4,096 tokens in f16: K and V 1.25 GiB together, Q would add 5 GiB; without GQA 10 GiB.
    row = one_request(uniform(name="", layers=80, heads=64, kv_heads=8, head_dim=128), 4096)

    assert row.exact_bytes == row.paged_bytes == 1.25 * GIB
    assert row.with_q_bytes - row.exact_bytes == 5 * GIB
    assert row.without_gqa_bytes == 10 * GIB


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-2-7b", 512 * 1024),  # 0.5 MiB a token; 2 GiB at 4,096
        ("llama-2-70b", 320 * 1024),
        ("llama-3.1-8b", 128 * 1024),
        ("llama-3.1-405b", 516_096),  # DeepSeek-AI, Insights into DeepSeek-V3, 2025, table 1: 516.096 KB
        ("qwen2.5-72b", 327_680),  # the same table: 327.680 KB
        ("deepseek-v3", 70_272),  # the same table: 70.272 KB
        ("opt-13b", 800 * 1024),  # Kwon et al., PagedAttention, 2023, section 3: 800 KB
        ("gpt-3-175b", 4608 * 1024),  # 2 · 2 · 96 layers · 12,288 wide
        ("deepseek-v2", 34_560 * 2),  # DeepSeek-V2, 2024, section 2.1.4: (512 + 64) · 60 elements
        ("falcon-7b", 8 * 1024),  # one head of K and V
        ("mixtral-8x7b", 128 * 1024),
        ("qwen2.5-7b", 56 * 1024),
        ("smollm2-135m", 23_040),
    ],
)
def test_bytes_of_a_token_in_f16(name: str, bytes_per_token: int, tmp_path: Path) -> None:
    geometry = geometry_of(name, tmp_path)

    assert geometry.token_bytes(StoredAs(2)) == bytes_per_token
    assert one_request(geometry, 16).paged_bytes == 16 * bytes_per_token


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_parameters(name: str, parameters: int, tmp_path: Path) -> None:
    assert geometry_of(name, tmp_path).num_parameters == parameters


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama-2-7b", "MHA"),
        ("llama-2-70b", "GQA"),
        ("falcon-7b", "MQA"),
        ("mistral-7b", "GQA, windowed"),
        ("gemma-2-9b", "GQA, mixed"),
        ("deepseek-v3", "MLA"),
    ],
)
def test_kinds_of_attention(name: str, kind: str, tmp_path: Path) -> None:
    assert geometry_of(name, tmp_path).attention == kind


def test_a_window_ends_the_growth(tmp_path: Path) -> None:
    mistral = geometry_of("mistral-7b", tmp_path)

    assert one_request(mistral, 4096).exact_bytes == 512 * 2**20
    assert one_request(mistral, 32768).exact_bytes == 512 * 2**20
    # In blocks of 16 a window of 4,096 may begin in the midst of one: 257 blocks.
    assert one_request(mistral, 32768).paged_bytes == 257 * 16 * 128 * 1024


def test_mixed_layers_are_counted_apart(tmp_path: Path) -> None:
    gemma = geometry_of("gemma-3-12b", tmp_path)
    a_layer = 2 * 2 * 8 * 256  # bytes a token

    assert [layer.window for layer in gemma.layers[:6]] == [1024] * 5 + [None]
    assert one_request(gemma, 131072).exact_bytes == a_layer * (8 * 131072 + 40 * 1024)
    oss = geometry_of("gpt-oss-20b", tmp_path)
    assert one_request(oss, 131072).exact_bytes == 2 * 2 * 8 * 64 * 12 * (131072 + 128)
    assert [layer.window for layer in geometry_of("gemma-2-9b", tmp_path).layers[:4]] == [4096, None, 4096, None]
