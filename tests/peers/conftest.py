"""Model files small enough to write in a test."""

from pathlib import Path

import pytest
from benchmarks.peers.model_files import Shape, write_random
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

TINY = Shape(layers=2, hidden=64, ffn=96, heads=2, vocabulary=200, context=256)


@pytest.fixture(scope="module")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with no tensor: a vocabulary of 260 tokens, every byte among them, and two merges."""
    path = tmp_path_factory.mktemp("pulled") / "model.gguf"
    writer = GGUFWriter(path, "llama")
    tokens = ["<unk>", "<s>", "</s>", "th", *sorted(ByteLevel.alphabet())]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * 257])
    writer.add_token_merges(["t h", "th e"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory, pulled: Path) -> Path:
    path = tmp_path_factory.mktemp("random") / "tiny.gguf"
    write_random(path, TINY, pulled)
    return path
