"""The row `files`: other types of one model, a shape with random weights, each beside the bandwidth."""

import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.peers import file_row, model_files, report
from benchmarks.peers.comparison import Memory
from benchmarks.peers.engine import Answer, EngineError
from benchmarks.peers.model_files import OTHER_TYPES, PULLED, RANDOM_7B, Shape, bytes_a_token, write_random
from benchmarks.peers.setup import SetupError
from benchmarks.peers.workloads import Tape, Workloads
from gguf import GGUFWriter

from foreword import LLM, SamplingParams
from foreword.models.gguf_file import GGUFFile
from tests.peers.conftest import TINY

BYTES = {PULLED: 100, "Q8_0": 200, "Q4_0": 80, "Q4_K_M": 100, "F32": 400, RANDOM_7B: 1000}


class Timed:
    """An engine whose tokens come at a fixed rate."""

    name, notes, start_s = "one", {"version": "1", "flags": ""}, 0.1

    def __init__(self, tok_s: float, prompts: list[list[int]]) -> None:
        self._token_s, self._prompts = 1 / tok_s, prompts

    def ask(self, prompt: list[int], num_tokens: int, logprobs: int = 0) -> Answer:
        self._prompts.append(prompt)
        times = [self._token_s * k for k in range(1, num_tokens + 1)]
        return Answer(times, num_tokens, times[-1])

    def memory_mib(self) -> float | None:
        return None

    def close(self) -> None:
        pass


def test_each_files_rate_is_laid_beside_the_bandwidth_and_beside_what_its_bytes_predict() -> None:
    rates = {PULLED: 100.0, "Q8_0": 45.0, "Q4_0": 125.0, "Q4_K_M": 50.0, "F32": 25.0, RANDOM_7B: 8.0}
    prompts: list[list[int]] = []
    found = file_row.measure(
        {kind: Path(kind) for kind in BYTES},
        lambda path: {"foreword": lambda: Timed(rates[str(path)], prompts)},
        {"foreword": 1},
        Workloads(Tape(list(range(40_000, 49_000))).take),
        lambda path: Memory(lambda: 10_000.0, BYTES[str(path)]),
        lambda _: None,
    )
    (values,) = found.values["foreword"]
    assert values is not None
    assert values == pytest.approx(
        {f"{kind}: tok/s": rate for kind, rate in rates.items()}
        | {f"{kind}: of bandwidth": rate * BYTES[kind] / 10_000 for kind, rate in rates.items()}
        | {
            "Q8_0: of what its bytes predict": 0.9,
            "Q4_0: of what its bytes predict": 1.0,
            "Q4_K_M: of what its bytes predict": 0.5,
            "F32: of what its bytes predict": 1.0,
        }
    )
    assert set(values) == set(found.row.larger_is_better)
    assert max(max(prompt) for prompt in prompts) < model_files.SMALL_VOCABULARY
    said = report.table([found], [])
    assert "| files | Q4_K_M: of what its bytes predict | 0.5 (0.5–0.5) | ≥ 0.85: short |" in said
    assert "| files | 7B Q4_0: of bandwidth | 0.8 (0.8–0.8) | ≥ 0.75: reached |" in said


def test_a_file_that_an_engine_fails_on_costs_it_no_other_value() -> None:
    def fails() -> Timed:
        raise EngineError("one: type not known")

    found = file_row.measure(
        {PULLED: Path(PULLED), "F32": Path("F32")},
        lambda path: {"foreword": fails if path.name == "F32" else lambda: Timed(10, [])},
        {"foreword": 1},
        Workloads(Tape([1, 2, 3]).take),
        lambda path: Memory(lambda: 1000.0, BYTES[str(path)]),
        lambda _: None,
    )
    assert [len(seconds) for seconds in found.seconds.values()] == [1]
    assert found.faults == {"foreword": "F32: one: type not known"}
    assert found.values["foreword"] == [pytest.approx({"as pulled: tok/s": 10.0, "as pulled: of bandwidth": 1.0})]


def test_a_random_model_has_its_shape_and_can_be_run(random_model: Path) -> None:
    with GGUFFile(random_model) as file:
        types = {name: tensor.type for name, tensor in file.tensors.items()}
        head = file.tensors["output.weight"]
        assert (head.shape, len(file.tensors)) == ((200, 64), 2 * 9 + 3)
        assert len(np.unique(head.data)) == 256
    assert set(types.values()) == {"Q4_0", "F32"}
    assert not list(random_model.parent.glob("*.part"))
    with LLM(random_model, threads=1) as llm:
        tokens = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], tokens)
    assert output.usage.completion_tokens == 5


def test_a_token_reads_every_weight_but_an_embedding_apart_from_the_head(random_model: Path) -> None:
    layer = (4 * 64 * 64 + 3 * 64 * 96) // 32 * 18 + 2 * 64 * 4
    assert bytes_a_token(random_model) == 2 * layer + 64 * 4 + 200 * 64 // 32 * 18


@pytest.mark.parametrize(("size", "index", "token"), [(200, 199, "ć"), (265, 264, "<unused4>")])
def test_a_vocabulary_is_cut_or_padded_to_the_shape(
    tmp_path: Path, pulled: Path, size: int, index: int, token: str
) -> None:
    path = tmp_path / "cut.gguf"
    write_random(path, Shape(layers=1, hidden=64, ffn=64, heads=1, vocabulary=size, context=64), pulled)
    with GGUFFile(path) as file:
        tokens, kept = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert (len(tokens), tokens[index], kept) == (size, token, ["t h"])


def test_a_file_without_a_vocabulary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    writer = GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(SetupError, match=r"bare\.gguf: no BPE vocabulary to borrow"):
        write_random(tmp_path / "random.gguf", TINY, path)


def test_other_types_are_made_by_the_quantizer_once(
    tmp_path: Path, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "LLAMA_2_7B", TINY)
    quantizer = tmp_path / "llama-quantize"
    quantizer.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nshutil.copy(sys.argv[-3], sys.argv[-2])\n"
        f"open({str(tmp_path / 'diary')!r}, 'a').write(sys.argv[-1] + '\\n')\n"
    )
    quantizer.chmod(0o755)
    for _ in range(2):
        files = model_files.make(tmp_path / "models", pulled, quantizer, lambda _: None)
    assert (tmp_path / "diary").read_text().split() == list(OTHER_TYPES)
    assert list(files) == [PULLED, *OTHER_TYPES, RANDOM_7B]
    assert all(path.exists() for path in files.values())
    (tmp_path / "models" / "model.to.F32.gguf").unlink()
    without = model_files.make(tmp_path / "models", pulled, None, lambda _: None)
    assert list(without) == [PULLED, "Q8_0", "Q4_0", "Q4_K_M", RANDOM_7B]


def test_a_quantizer_that_fails_leaves_no_file(tmp_path: Path, pulled: Path) -> None:
    quantizer = tmp_path / "llama-quantize"
    quantizer.write_text("#!/bin/sh\nexit 3\n")
    quantizer.chmod(0o755)
    with pytest.raises(SetupError, match="llama-quantize ended with code 3"):
        model_files.make(tmp_path / "models", pulled, quantizer, lambda _: None)
    assert not list((tmp_path / "models").glob("*.gguf"))
