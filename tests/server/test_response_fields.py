"""The response cache's key: every field of every body is classified, and whatever decides an answer is in the key."""

import itertools
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from foreword.server.response_cache import Directives, ResponseCache
from foreword.server.response_fields import NOT_SEMANTIC, SEMANTIC, BodyQuestion, body_digest
from tests.server.wire import chat_body, completion_body, message_body, response_body

BODIES: dict[type[msgspec.Struct], Any] = {}
for _struct, _body in zip(SEMANTIC, (chat_body(), completion_body(), response_body(), message_body()), strict=True):
    BODIES[_struct] = msgspec.convert(_body, _struct)

FIELDS = [(struct, name) for struct in SEMANTIC for name in struct.__struct_fields__]


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize("struct", SEMANTIC, ids=named)
def test_every_field_of_a_body_is_classified(struct: type[msgspec.Struct]) -> None:
    semantic, others = SEMANTIC[struct], set(NOT_SEMANTIC[struct])
    fields = set(struct.__struct_fields__)

    message = "say in foreword/server/response_fields.py whether the field can change an answer, and if not, why"
    assert not fields - semantic - others, message
    assert not (semantic | others) - fields, "these are fields no more"
    assert not semantic & others
    assert all(len(reason) > 10 for reason in NOT_SEMANTIC[struct].values())


@pytest.mark.parametrize(("struct", "name"), FIELDS, ids=named)
def test_a_changed_field_has_another_key_unless_it_has_a_reason_not_to(struct: type[msgspec.Struct], name: str) -> None:
    body = BODIES[struct]

    values: tuple[Any, ...] = (None, 0, 1, "0", [], [0], {})
    digests = [body_digest(msgspec.structs.replace(body, **{name: value})) for value in values]

    expected = 1 if name in NOT_SEMANTIC[struct] else len(digests)
    assert len(set(digests)) == expected


def nested_types(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Every struct below a body's type."""
    for part in (kind, *typing.get_args(kind)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            yield part
            for hint in typing.get_type_hints(part, include_extras=True).values():
                yield from nested_types(hint)
        elif part is not kind:
            yield from nested_types(part)


NESTED = sorted({kind for body in SEMANTIC for kind in nested_types(body)} - set(SEMANTIC), key=named)


def test_nested_types_are_found() -> None:
    assert {"ChatMessage", "TextPart", "TextBlock", "InputMessage", "CacheControl", "StreamOptions"} <= set(
        map(named, NESTED)
    )


@pytest.mark.parametrize("kind", NESTED, ids=named)
def test_a_changed_field_below_a_semantic_one_has_another_key(kind: type[msgspec.Struct]) -> None:
    for name in kind.__struct_fields__:
        plain: dict[str, Any] = dict.fromkeys(kind.__struct_fields__)
        parts = [kind(**(plain | {name: value})) for value in ("a", "b", 1, ["a"])]
        digests = {
            body_digest(msgspec.structs.replace(body, **{said: [part]})) for part in parts for body, said in MESSAGES
        }
        assert len(digests) == len(parts) * len(MESSAGES)


MESSAGES = [(body, said) for body in BODIES.values() for said in ("messages", "input") if hasattr(body, said)]


def test_bodies_of_two_kinds_never_share_a_key() -> None:
    assert len({body_digest(body) for body in BODIES.values()}) == len(BODIES)


def test_a_key_differs_wherever_anything_does() -> None:
    caches = [ResponseCache(1000, 1, identity) for identity in (b"model", b"model2")]
    questions = [BodyQuestion(body, Directives()) for body in BODIES.values()]
    prompts: list[list[list[int]]] = [[[1, 2, 3]], [[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3], []], [[]], [], [[258]]]
    prompts += [[[2, 1]], [[1 << 16]]]
    everything = list(itertools.product(caches, questions, (b"alice", b"bob", b""), prompts))

    keys = [cache.key(question, namespace, ids) for cache, question, namespace, ids in everything]

    assert len(set(keys)) == len(everything)
    again = [cache.key(replace(question), namespace, ids) for cache, question, namespace, ids in everything]
    assert again == keys
