from pathlib import Path

import numpy as np
import pytest
from tests.factories import tiny_model, tiny_weights
from tests.oracles.sequential_generate import PrivateCaches, sequential_logits

from foreword.models.workspace import Workspace
from foreword.ops.reference import ReferenceBackend

PROMPT = list(np.random.default_rng(5).integers(0, 256, 40))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("chunk", [3, 16, 40])
def test_logits_do_not_depend_on_the_chunk(architecture: str, chunk: int, tmp_path: Path) -> None:
    model = tiny_model(tmp_path, ReferenceBackend(), architecture=architecture)

    one_by_one = sequential_logits(model, PROMPT)

    assert sequential_logits(model, PROMPT, chunk=chunk).tobytes() == one_by_one.tobytes()


@pytest.mark.parametrize("rows", [[7], [0, 3, 7], list(range(8)), []])
def test_rows_picked_before_the_end_are_those_of_the_whole(rows: list[int], tmp_path: Path) -> None:
    model = tiny_model(tmp_path, ReferenceBackend())
    token_ids = np.array(PROMPT[:8], np.int32)
    workspace = Workspace(model.config, 8)
    caches = PrivateCaches(model.config, 8)
    whole = model.forward(token_ids, caches.batch(0, 8), caches, workspace).copy()
    picked_caches = PrivateCaches(model.config, 8)

    picked = model.forward(
        token_ids, picked_caches.batch(0, 8), picked_caches, workspace, rows=np.array(rows, np.int32)
    )

    assert picked.tobytes() == whole[rows].tobytes()
    for layer in range(model.config.num_layers):
        assert picked_caches.k_cache(layer).tobytes() == caches.k_cache(layer).tobytes()


def test_logits_are_written_where_they_are_wanted(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, ReferenceBackend())
    hidden = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    out = np.empty((2, 256), np.float32)

    assert model.logits(hidden, out) is out
    assert out.tobytes() == model.logits(hidden).tobytes()


@pytest.mark.parametrize("tied", [True, False])
def test_num_bytes_is_the_weights_and_the_rotary_table(tied: bool, tmp_path: Path) -> None:
    model = tiny_model(tmp_path, ReferenceBackend(), tied_embeddings=tied)
    weight_bytes = sum(values.nbytes for values in tiny_weights(model.config).values())
    assert model.num_bytes == weight_bytes

    sequential_logits(model, PROMPT)

    assert model.num_bytes == weight_bytes + 4 * model.config.max_position * model.config.head_dim


def test_a_workspace_says_what_it_holds(tmp_path: Path) -> None:
    config = tiny_model(tmp_path, ReferenceBackend()).config

    # hidden twice, attention of the last rows, and one place for what is larger: q k v and attention, or gate and up
    assert Workspace(config, 10).num_bytes == 4 * 10 * (2 * 64 + 64 + max((4 + 2 * 2) * 16 + 64, 2 * 96))
