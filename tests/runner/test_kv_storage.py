"""K and V of a block are one unit, whatever their dtype: copied whole, and poisoned whole."""

import numpy as np
import pytest
from tests.factories import tiny_config

from foreword.core.config import CacheConfig, KVDtype
from foreword.core.errors import InvariantError
from foreword.core.outputs import BlockCopy
from foreword.core.types import BlockId
from foreword.ops.backend import Backend
from foreword.ops.cpu import CpuBackend
from foreword.ops.kv_layout import key_parts, value_parts
from foreword.ops.reference import ReferenceBackend
from foreword.runner.kv_storage import KVStorage

DTYPES: tuple[KVDtype, ...] = ("f32", "f16", "int16", "int8")
MODEL = tiny_config()


def make_storage(kv_dtype: KVDtype, *, debug: bool = False) -> KVStorage:
    return KVStorage(MODEL, CacheConfig(num_blocks=5, block_size=8, kv_dtype=kv_dtype, debug=debug))


def bytes_of(storage: KVStorage, block: int) -> list[bytes]:
    layers = range(MODEL.num_layers)
    return [array[block].tobytes() for i in layers for array in (storage.k_cache(i), storage.v_cache(i))]


@pytest.mark.parametrize("copy", [(-1, 0), (0, -1), (5, 0), (0, 5)])
def test_a_block_outside_the_pool_is_not_copied(copy: tuple[int, int]) -> None:
    storage = make_storage("f32")

    with pytest.raises(InvariantError, match="of 5"):
        storage.prepare(CpuBackend(), [], [BlockCopy(BlockId(copy[0]), BlockId(copy[1]))])


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("backend", [CpuBackend(), ReferenceBackend()], ids=lambda backend: str(backend.name))
def test_a_copied_block_has_every_byte_of_its_source(backend: Backend, kv_dtype: KVDtype) -> None:
    storage, rng = make_storage(kv_dtype), np.random.default_rng(0)
    for i in range(MODEL.num_layers):
        for array in (storage.k_cache(i), storage.v_cache(i)):
            array.view(np.uint8).reshape(-1)[:] = rng.integers(0, 256, array.nbytes)
    before = [bytes_of(storage, block) for block in range(5)]

    storage.prepare(backend, [], [BlockCopy(BlockId(1), BlockId(3)), BlockCopy(BlockId(4), BlockId(0))])

    assert [bytes_of(storage, block) for block in range(5)] == [before[i] for i in (4, 1, 2, 1, 4)]


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_fresh_block_holds_nothing_that_could_pass_for_a_number(kv_dtype: KVDtype) -> None:
    storage = make_storage(kv_dtype, debug=True)
    before = bytes_of(storage, 1)

    storage.prepare(ReferenceBackend(), [BlockId(0), BlockId(2)], [])

    for i in range(MODEL.num_layers):
        for parts in (key_parts(storage.k_cache(i)), value_parts(storage.v_cache(i))):
            assert np.isnan(parts.floats()[[0, 2]]).all()
    assert bytes_of(storage, 1) == before


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_values_and_scales_together_are_all_of_the_bytes(kv_dtype: KVDtype) -> None:
    storage = make_storage(kv_dtype)

    for array, parts in (
        (storage.k_cache(0), key_parts(storage.k_cache(0))),
        (storage.v_cache(0), value_parts(storage.v_cache(0))),
    ):
        parts.elements[:] = 1
        counted = parts.elements.nbytes
        if parts.scales is not None:
            parts.scales[:] = 1
            counted += parts.scales.nbytes
        assert counted == array.nbytes
        assert (parts.elements == 1).all()  # writing the scales changed none of them
