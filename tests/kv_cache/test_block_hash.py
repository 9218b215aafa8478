"""One identity: no two different settings, tokens or places give the same bytes."""

import random
import sys

import pytest
from msgspec.structs import fields, replace

from foreword.core.types import TokenId
from foreword.kv_cache.block_hash import CacheIdentity, block_hash, extend_hashes, namespace_hash
from foreword.kv_cache.prefix_cache import TokenPath, pack_tokens

IDENTITY = CacheIdentity(
    weights=b"w", tokenizer=b"t", attention=b"a", kv_dtype="f16", block_size=16, instruction_set="avx2"
)


def path_of(tokens: list[int], namespace: bytes = b"n") -> TokenPath:
    path = TokenPath(namespace)
    path.extend([TokenId(token) for token in tokens])
    return path


def test_every_field_changes_the_root_and_absent_differs_from_empty() -> None:
    variants = [IDENTITY]
    for field in fields(CacheIdentity):
        value: object = 32 if field.name == "block_size" else "x" if field.type is str else b"x"
        variants.append(replace(IDENTITY, **{field.name: value}))
    for name in ("adapter", "tenant", "salt"):
        variants.append(replace(IDENTITY, **{name: b""}))

    roots = [identity.root() for identity in variants]

    assert len(set(roots)) == len(variants) == 1 + 9 + 3
    assert all(len(root) == 32 for root in roots)


def test_a_salt_that_spells_an_adapter_is_another_domain() -> None:
    adapter = replace(IDENTITY, adapter=b"X")
    salt = replace(IDENTITY, salt=b"X")
    tenant = replace(IDENTITY, tenant=b"X")

    assert len({adapter.root(), salt.root(), tenant.root()}) == 3


def test_random_and_adversarial_runs_never_share_a_hash() -> None:
    rng = random.Random(3)
    seen: dict[bytes, tuple[int, ...]] = {}
    parent = namespace_hash(b"n")
    base = [rng.randrange(2**31) for _ in range(8)]
    for _ in range(20_000):
        tokens = list(base)
        first, second = rng.sample(range(8), 2)
        tokens[first], tokens[second] = tokens[second], tokens[first]
        delta = rng.randrange(1, 32)
        tokens[first] = (tokens[first] + 31 * delta) % 2**31
        tokens[second] = (tokens[second] - delta) % 2**31
        key = tuple(tokens)
        assert seen.setdefault(block_hash(parent, pack_tokens(map(TokenId, key))), key) == key


def test_a_chain_depends_on_namespace_order_and_block_borders() -> None:
    tokens = list(range(32))
    chains = [
        extend_hashes(path_of(tokens), 2, 16)[-1],
        extend_hashes(path_of(tokens, b"m"), 2, 16)[-1],
        extend_hashes(path_of(tokens[::-1]), 2, 16)[-1],
        extend_hashes(path_of(tokens), 4, 8)[-1],
        extend_hashes(path_of([0] * 32), 2, 16)[-1],
        extend_hashes(path_of([0] * 16), 1, 16)[-1],
    ]

    assert len(set(chains)) == len(chains)


def test_a_chain_is_made_block_by_block_and_only_once() -> None:
    path = path_of(list(range(48)))

    first = list(extend_hashes(path, 1, 16))
    whole = extend_hashes(path, 3, 16)

    assert whole[:1] == first
    assert whole[1] == block_hash(whole[0], pack_tokens(TokenId(token) for token in range(16, 32)))
    assert extend_hashes(path, 1, 16) is whole


def test_media_count_with_their_place() -> None:
    parent = namespace_hash(b"n")
    tokens = pack_tokens([TokenId(1)])

    hashes = {block_hash(parent, tokens, media) for media in ((), ((0, b"p"),), ((1, b"p"),), ((0, b"q"),))}

    assert len(hashes) == 4


def test_hashes_are_those_of_little_endian_tokens_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = namespace_hash(b"n")
    swapped = bytes([0, 0, 0, 1, 0, 0, 0, 2])
    native = pack_tokens([TokenId(1), TokenId(2)])
    expected = block_hash(parent, native)

    monkeypatch.setattr(sys, "byteorder", "big")

    assert block_hash(parent, swapped) == expected


def test_hashes_start_from_the_engines_identity_where_it_has_one() -> None:
    plain, rooted, other = namespace_hash(b"n"), namespace_hash(b"n", b"r"), namespace_hash(b"n", b"s")

    assert len({plain, rooted, other}) == 3
    assert namespace_hash(b"", b"n") != plain
    path = TokenPath(b"n", root=b"r")
    path.extend([TokenId(t) for t in range(8)])
    assert extend_hashes(path, 1, 8) == [block_hash(rooted, bytes(path.packed))]
