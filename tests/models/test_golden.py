"""Our forward pass against `transformers`, f32: tiny models of each architecture and rotary variant, and SmolLM2."""

from pathlib import Path

import numpy as np
import pytest
from tests.oracles.sequential_generate import sequential_generate, sequential_logits
from tests.smollm2 import SMOLLM2, needs_smollm2

from foreword.models.registry import load_model, open_model_files
from foreword.models.rope import inverse_frequencies
from foreword.ops.backend import Backend
from foreword.ops.reference import ReferenceBackend

GOLDEN = Path(__file__).parent.parent / "golden"
TINY = sorted(folder.name for folder in GOLDEN.iterdir() if (folder / "golden.npz").is_file())
TOLERANCE = 1e-4


def cpu_backend(instruction_set: str) -> Backend:
    from foreword.ops.cpu import CpuBackend

    try:
        return CpuBackend(num_threads=2, instruction_set=instruction_set)
    except ValueError as error:
        pytest.skip(f"this machine has no {instruction_set}: {error}")


@pytest.fixture(params=["reference", "scalar", "avx2"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return ReferenceBackend() if request.param == "reference" else cpu_backend(request.param)


@pytest.mark.parametrize("name", TINY)
def test_logits_and_greedy_tokens_equal_those_of_transformers(name: str, backend: Backend) -> None:
    golden = np.load(GOLDEN / name / "golden.npz")
    model = load_model(GOLDEN / name, backend)

    logits = sequential_logits(model, golden["prompt"].tolist(), chunk=48)
    generated = sequential_generate(model, golden["prompt"].tolist(), len(golden["continuation"]))

    assert np.abs(logits - golden["logits"]).max() <= TOLERANCE
    assert generated.token_ids == golden["continuation"].tolist()


@pytest.mark.parametrize("name", TINY)
def test_inverse_frequencies_equal_those_of_transformers_bit_for_bit(name: str) -> None:
    with open_model_files(GOLDEN / name) as files:
        frequencies, _ = inverse_frequencies(files.config)

    assert frequencies.tobytes() == np.load(GOLDEN / name / "golden.npz")["inverse_frequencies"].tobytes()


def test_every_architecture_and_rotary_variant_has_a_golden_model() -> None:
    configs = [load_model(GOLDEN / name, ReferenceBackend()).config for name in TINY]

    assert {config.architecture for config in configs} == {"llama", "mistral", "qwen2", "qwen3"}
    assert {config.rope_scaling.kind for config in configs} == {"none", "linear", "llama3", "yarn"}
    assert {config.num_heads // config.num_kv_heads for config in configs} == {1, 2, 4}
    assert {config.tied_embeddings for config in configs} == {True, False}


@needs_smollm2
@pytest.mark.parametrize(("instruction_set", "num_tokens"), [("scalar", 8), ("avx2", 64)])
def test_smollm2_dequantised_equals_transformers_reading_the_same_file(instruction_set: str, num_tokens: int) -> None:
    golden = np.load(GOLDEN / "smollm2.npz")
    prompt = golden["prompt"].tolist()
    model = load_model(SMOLLM2, cpu_backend(instruction_set), weight_dtype="f32", max_model_len=512)

    logits = sequential_logits(model, prompt, chunk=64)
    generated = sequential_generate(model, prompt, num_tokens)

    assert np.abs(logits[-1] - golden["last_logits"]).max() <= TOLERANCE
    assert np.abs(logits[:, golden["columns"]] - golden["column_logits"]).max() <= TOLERANCE
    assert generated.token_ids == golden["continuation"][:num_tokens].tolist()
