"""GGUF files byte by byte, so that every field can lie."""

import struct
from dataclasses import dataclass, field

import numpy as np
from tests.factories import gguf_name, tiny_config, tiny_weights

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10


def string(text: bytes | str) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def text_value(text: bytes | str) -> bytes:
    return struct.pack("<I", STRING) + string(text)


def u32_value(number: int) -> bytes:
    return struct.pack("<II", U32, number)


def f32_value(number: float) -> bytes:
    return struct.pack("<If", F32, number)


def array_value(element_type: int, count: int, payload: bytes) -> bytes:
    return struct.pack("<IIQ", ARRAY, element_type, count) + payload


def pair(key: bytes | str, value: bytes) -> bytes:
    return string(key) + value


@dataclass
class Tensor:
    """One entry of the header; `offset` is set on writing unless given."""

    name: str | bytes
    sizes: tuple[int, ...]  # in the file's order, the fastest first
    data: bytes
    type_code: int = 0
    offset: int | None = None
    num_dimensions: int | None = None

    def info(self, offset: int) -> bytes:
        count = len(self.sizes) if self.num_dimensions is None else self.num_dimensions
        sizes = b"".join(struct.pack("<Q", size) for size in self.sizes)
        where = offset if self.offset is None else self.offset
        return string(self.name) + struct.pack("<I", count) + sizes + struct.pack("<IQ", self.type_code, where)


@dataclass
class GGUFBytes:
    """A whole file; by default a valid tiny llama."""

    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_pairs: int | None = None
    alignment: int = 32
    pairs: dict[str | bytes, bytes] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    extra: bytes = b""  # more pairs, after the others and counted by `num_pairs` alone

    def build(self) -> bytes:
        infos, body = b"", b""
        for tensor in self.tensors:
            infos += tensor.info(len(body))
            body += tensor.data + bytes(-len(tensor.data) % self.alignment)
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_pairs = len(self.pairs) if self.num_pairs is None else self.num_pairs
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_pairs)
        head += b"".join(pair(key, value) for key, value in self.pairs.items()) + self.extra + infos
        return head + bytes(-len(head) % self.alignment) + body

    def tensor(self, name: str) -> Tensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)


def valid_gguf() -> GGUFBytes:
    """A llama of one layer that loads."""
    config = tiny_config(
        num_layers=1,
        hidden_size=32,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=32,
        vocab_size=32,
        tied_embeddings=True,
    )
    file = GGUFBytes(
        pairs={
            "general.architecture": text_value("llama"),
            "llama.block_count": u32_value(config.num_layers),
            "llama.context_length": u32_value(config.max_position),
            "llama.embedding_length": u32_value(config.hidden_size),
            "llama.feed_forward_length": u32_value(config.intermediate_size),
            "llama.attention.head_count": u32_value(config.num_heads),
            "llama.attention.head_count_kv": u32_value(config.num_kv_heads),
            "llama.attention.layer_norm_rms_epsilon": f32_value(1e-5),
            "llama.rope.freq_base": f32_value(1e4),
            "tokenizer.ggml.tokens": array_value(STRING, 32, b"".join(string(f"t{i}") for i in range(32))),
            "tokenizer.ggml.token_type": array_value(I32, 32, np.ones(32, "<i4").tobytes()),
        }
    )
    for name, values in tiny_weights(config).items():
        file.tensors.append(Tensor(gguf_name(name), values.shape[::-1], values.tobytes()))
    return file
