"""Whatever Python passes to the decoder's bindings, they answer with one clear error, never a crash."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foreword import _native

HEADS, KV_HEADS, DIM, SIZE, INNER, BLOCKS, BLOCK_SIZE = 2, 1, 32, 64, 96, 4, 8
QKV = (HEADS + 2 * KV_HEADS) * DIM


class Fixture:
    """A decoder of one layer, and arguments that fit it; a call may replace any of them by name."""

    def __init__(self) -> None:
        self.context = _native.Context(1, "auto")
        self.embedding = self.matrix(10, SIZE)
        ones = np.ones(SIZE, np.float32)
        self.layer: list[Any] = [
            *(ones, self.matrix(QKV, SIZE), None, None, None, self.matrix(SIZE, HEADS * DIM), None),
            *(ones, self.matrix(2 * INNER, SIZE), None, self.matrix(SIZE, INNER), None),
        ]

    def matrix(self, rows: int, cols: int) -> _native.PackedMatrix:
        data = np.ones(rows * cols, np.float32).view(np.uint8)
        return _native.pack_matrix(self.context, [("F32", rows, cols, data, None)])

    def make(self, *, part: tuple[int, Any] | None = None, **changes: Any) -> _native.Decoder:
        layer = list(self.layer)
        if part is not None:
            layer[part[0]] = part[1]
        arguments: dict[str, Any] = {
            "layers": [tuple(layer)],
            "final_norm": np.ones(SIZE, np.float32),
            "head": self.embedding,
            "num_heads": HEADS,
            "num_kv_heads": KV_HEADS,
            "head_dim": DIM,
            "eps": 1e-5,
            "scale": 0.1,
        }
        return _native.Decoder(self.embedding, **(arguments | changes))

    def bind(self, **changes: Any) -> _native.Decoder:
        decoder = self.make()
        arguments: dict[str, Any] = {
            "k_caches": [np.zeros((BLOCKS, KV_HEADS, DIM, BLOCK_SIZE), np.float16)],
            "v_caches": [np.zeros((BLOCKS, KV_HEADS, BLOCK_SIZE, DIM), np.float16)],
        }
        columns = {"hidden": SIZE, "last_hidden": SIZE, "qkv": QKV, "attention": HEADS * DIM}
        columns |= {"last_attention": HEADS * DIM, "gate_up": 2 * INNER}
        arguments |= {name: np.zeros((3, size), np.float32) for name, size in columns.items()}
        decoder.bind(**(arguments | changes))
        return decoder

    def forward(self, **changes: Any) -> None:
        arguments: dict[str, Any] = {
            "token_ids": ids(3, 4),
            "positions": ids(0, 1),
            "slot_mapping": ids(8, 9),
            "block_tables": np.array([[1]], np.int32),
            "query_start_loc": ids(0, 2),
            "context_lens": ids(2),
            "cos_sin": np.ones((4, DIM), np.float32),
            "rows": None,
            "logits": None,
            "best": None,
            "num_words": 0,
        }
        self.bind().forward(self.context, **(arguments | changes))


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


BAD_VALUES: dict[str, Callable[[Fixture], object]] = {
    "layers: expected at least one": lambda g: g.make(layers=[]),
    "layers[0]: expected a tuple of 12, got 2": lambda g: g.make(layers=[(1, 2)]),
    "layers[0]: expected a tuple, got another": lambda g: g.make(layers=[3]),
    "final_norm: expected values 64, got 63": lambda g: g.make(final_norm=np.ones(63, np.float32)),
    "head: expected inputs 64, got 32": lambda g: g.make(head=g.matrix(10, 32)),
    "num_heads: expected 1 to 2147483647, got 0": lambda g: g.make(num_heads=0),
    "num_heads: expected a multiple of num_kv_heads 4, got 2": lambda g: g.make(num_kv_heads=4),
    "head_dim: expected an even number, got 33": lambda g: g.make(head_dim=33),
    "eps: expected a finite number of at least 0": lambda g: g.make(eps=float("nan")),
    "scale: expected a finite number": lambda g: g.make(scale=float("inf")),
    "layers[0] attention_norm: expected values 64, got 63": lambda g: g.make(part=(0, np.ones(63, np.float32))),
    "layers[0] mlp_norm: expected a contiguous float32 array": lambda g: g.make(part=(7, np.ones(64))),
    "layers[0] qkv: expected a packed matrix": lambda g: g.make(part=(1, None)),
    "layers[0] qkv: expected outputs 128, got 64": lambda g: g.make(part=(1, g.matrix(64, 64))),
    "layers[0] qkv_bias: expected values 128, got 1": lambda g: g.make(part=(2, np.ones(1, np.float32))),
    "layers[0] output: expected inputs 64, got 32": lambda g: g.make(part=(5, g.matrix(64, 32))),
    "layers[0] gate_up: expected a packed matrix": lambda g: g.make(part=(8, "no")),
    "layers[0] gate_up: expected outputs 192, got 193": lambda g: g.make(part=(8, g.matrix(193, 64))),
    "layers[0] down: expected inputs 96, got 64": lambda g: g.make(part=(10, g.matrix(64, 64))),
    "k_caches: expected layers 1, got 0": lambda g: g.bind(k_caches=[]),
    "v_caches[0]: expected a contiguous array": lambda g: g.bind(v_caches=[np.zeros(3, np.float16)]),
    "k_caches[0]: expected head dimension 32, got 16": lambda g: g.bind(
        k_caches=[np.zeros((BLOCKS, KV_HEADS, 16, BLOCK_SIZE), np.float16)],
        v_caches=[np.zeros((BLOCKS, KV_HEADS, BLOCK_SIZE, 16), np.float16)],
    ),
    "v_cache: expected the dtype of k_cache": lambda g: g.bind(
        v_caches=[np.zeros((BLOCKS, KV_HEADS, BLOCK_SIZE, DIM), np.float32)]
    ),
    "k_cache: expected codes in pairs: an even head dimension and block size, got 32 and 15": lambda g: g.bind(
        k_caches=[np.zeros((BLOCKS, KV_HEADS, DIM + 2, 15), np.int16)],
        v_caches=[np.zeros((BLOCKS, KV_HEADS, 15, DIM + 2), np.int16)],
    ),
    "qkv: expected rows 3, got 2": lambda g: g.bind(qkv=np.zeros((2, QKV), np.float32)),
    "gate_up: expected columns 192, got 96": lambda g: g.bind(gate_up=np.zeros((3, 96), np.float32)),
    "bind: expected a call before the first step": lambda g: g.make().forward(
        g.context,
        ids(1),
        ids(0),
        ids(0),
        np.array([[1]], np.int32),
        ids(0, 1),
        ids(1),
        np.ones((4, DIM), np.float32),
        None,
        None,
        None,
        0,
    ),
    "token_ids: expected at most 3 tokens, got 4": lambda g: g.forward(token_ids=ids(1, 1, 1, 1)),
    "token_ids[1]: expected 0 to 9, got 10": lambda g: g.forward(token_ids=ids(0, 10)),
    "positions: expected tokens 2, got 1": lambda g: g.forward(positions=ids(0)),
    "positions[1]: expected 0 to 3, got 4": lambda g: g.forward(positions=ids(0, 4)),
    "slot_mapping[0]: expected 0 to 31, got -1": lambda g: g.forward(slot_mapping=ids(-1, 0)),
    "block_tables[0, 0]: expected 0 to 3, got 4": lambda g: g.forward(block_tables=np.array([[4]], np.int32)),
    "query_start_loc: expected to end with the rows of qkv, 2": lambda g: g.forward(query_start_loc=ids(0, 1)),
    "context_lens[0]: expected 2 scheduled tokens": lambda g: g.forward(context_lens=ids(1)),
    "cos_sin: expected columns 32, got 16": lambda g: g.forward(cos_sin=np.ones((4, 16), np.float32)),
    "rows: expected at most 3, got 4": lambda g: g.forward(rows=ids(0, 0, 0, 0)),
    "rows[0]: expected 0 to 1, got 2": lambda g: g.forward(rows=ids(2)),
    "logits: expected rows 2, got 1": lambda g: g.forward(logits=np.zeros((1, 10), np.float32)),
    "logits: expected rows 1, got 2": lambda g: g.forward(rows=ids(1), logits=np.zeros((2, 10), np.float32)),
    "best: expected logits beside it": lambda g: g.forward(best=ids(0, 0)),
    "best: expected rows 2, got 1": lambda g: g.forward(logits=np.zeros((2, 10), np.float32), best=ids(0), num_words=1),
    "num_words: expected 1 to 10, got 11": lambda g: g.forward(
        logits=np.zeros((2, 10), np.float32), best=ids(0, 0), num_words=11
    ),
    "logits: expected columns 10, got 9": lambda g: g.forward(logits=np.zeros((2, 9), np.float32)),
}


@pytest.mark.parametrize("message", BAD_VALUES)
def test_a_bad_value_is_a_value_error_that_names_it(message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        BAD_VALUES[message](Fixture())


def test_arguments_that_fit_are_taken() -> None:
    Fixture().forward()
    Fixture().forward(rows=ids(), logits=np.zeros((0, 10), np.float32))
    Fixture().forward(logits=np.zeros((2, 10), np.float32), best=ids(0, 0), num_words=10)


def test_a_step_without_tokens_does_nothing() -> None:
    tables = np.zeros((1, 1), np.int32)
    Fixture().forward(
        token_ids=ids(),
        positions=ids(),
        slot_mapping=ids(),
        block_tables=tables,
        query_start_loc=ids(0, 0),
        context_lens=ids(0),
    )
