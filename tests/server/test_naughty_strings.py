"""The Big List of Naughty Strings in every field of every route that takes text: words like others, or a plain refusal.

The routes come from the table of operations, the fields from the types of their bodies: a new one is tried by itself.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from foreword.server.openapi.operations import OPERATIONS
from tests.profile import DEEP
from tests.server.conftest import MODEL, Keyed
from tests.server.examples import EXAMPLES
from tests.server.examples import handy as handy
from tests.server.wire import post_all

FILE = Path(os.environ.get("FOREWORD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
FILE = FILE / "json-parsing" / "blns.json"
PER_PLACE = 600 if DEEP else 2
MAX_DEPTH = 8

Put = Callable[[str], Any]
"""Makes a value with a text at one place."""


def strings() -> list[str]:
    if not FILE.is_file():
        pytest.skip(f"{FILE.parent} is not there; set FOREWORD_SHARED_DATA")
    found = json.loads(FILE.read_text())
    assert len(found) > 500
    return [str(text) for text in found]


def places(kind: inspect.Type, depth: int = 0) -> Iterator[Put]:
    """Every place for text below a type, with as little around it as the type demands."""
    if depth > MAX_DEPTH:
        return
    match kind:
        case inspect.StrType():
            yield lambda text: text
        case inspect.AnyType():
            yield lambda text: text
            yield lambda text: {text: [text]}
        case inspect.ListType():
            yield from (_in_list(put) for put in places(kind.item_type, depth + 1))
        case inspect.DictType():
            yield from (_in_dict(put) for put in places(kind.value_type, depth + 1))
            yield lambda text: {text: least(kind.value_type)}
        case inspect.UnionType():
            for each in kind.types:
                yield from places(each, depth + 1)
        case inspect.StructType():
            for field in kind.fields:
                yield from (_in_field(kind, field.encode_name, put) for put in places(field.type, depth + 1))


def _in_list(put: Put) -> Put:
    return lambda text: [put(text)]


def _in_dict(put: Put) -> Put:
    return lambda text: {"a": put(text)}


def _in_field(kind: inspect.StructType, name: str, put: Put) -> Put:
    return lambda text: least(kind) | {name: put(text)}


def least(kind: inspect.Type) -> Any:
    """The smallest value of a type."""
    match kind:
        case inspect.StructType():
            required = {field.encode_name: least(field.type) for field in kind.fields if field.required}
            return required | ({} if kind.tag_field is None else {kind.tag_field: kind.tag})
        case inspect.UnionType():
            return None if any(isinstance(each, inspect.NoneType) for each in kind.types) else least(kind.types[0])
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.ListType():
            return [least(kind.item_type)] * (kind.min_length or 0)
        case inspect.IntType() | inspect.FloatType():
            return max(1, kind.ge or 1)
        case inspect.DictType():
            return {}
        case inspect.BoolType():
            return False
    return "a"


def test_places_are_found_at_every_depth() -> None:
    found = [put("!") for put in places(inspect.type_info(OPERATIONS["/v1/chat/completions"]["post"].body))]

    for wanted in (
        {"model": "a", "messages": [{"role": "assistant", "content": "!"}]},
        {"model": "!", "messages": []},
        {"model": "a", "messages": [{"role": "assistant", "content": [{"type": "text", "text": "!"}]}]},
        {"model": "a", "messages": [], "stop": ["!"]},
        {"model": "a", "messages": [], "logit_bias": {"!": 1}},
        {"model": "a", "messages": [], "user": "!"},
    ):
        assert any(_contains(value, wanted) for value in found), wanted
    assert len(found) > 50


def _contains(value: dict[str, Any], wanted: dict[str, Any]) -> bool:
    given = {name: each for name, each in value.items() if name in wanted and wanted[name] != []}
    return given == {name: each for name, each in wanted.items() if each != []}


@pytest.mark.parametrize(
    "path", [path for path, methods in OPERATIONS.items() if "post" in methods and methods["post"].body]
)
def test_naughty_strings_are_words_like_others_in_every_field(handy: Keyed, path: str) -> None:
    """`post_all` holds what comes back to the document: a well-formed answer, or an error that names a field."""
    body, texts = OPERATIONS[path]["post"].body, strings()
    assert body is not None
    example = EXAMPLES[path][0]

    def bodies() -> Iterator[bytes]:
        number = 0
        for put in places(inspect.type_info(body)):
            for _ in range(PER_PLACE):
                text = texts[number % len(texts)]
                number += 1 if DEEP else 7  # so that fields next to each other have other kinds of strings
                made = put(text)
                yield msgspec.json.encode(example | {name: made[name] for name in made if _has(made[name], text)})

    for answer in post_all(handy.live.port, path, bodies(), key=handy.keys["ops"]):
        assert answer.status in (200, 400, 404), answer.body


def _has(value: Any, text: str) -> bool:
    """True when a text is somewhere in a value."""
    if isinstance(value, dict):
        return any(_has(each, text) for each in (*value, *value.values()))
    return any(_has(each, text) for each in value) if isinstance(value, list) else value == text


def test_every_naughty_string_is_answered_as_what_is_said(handy: Keyed) -> None:
    texts = [text for text in strings() if text.strip()][:: 1 if DEEP else 9]
    for path, put in (
        ("/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
        ("/v1/completions", lambda text: {"prompt": text, "max_tokens": 1}),
        ("/v1/responses", lambda text: {"input": text, "max_output_tokens": 1}),
        ("/v1/messages", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
        ("/v1/embeddings", lambda text: {"input": text}),
        ("/v1/messages/count_tokens", lambda text: {"messages": [{"role": "user", "content": text}]}),
    ):
        bodies = (msgspec.json.encode({"model": MODEL} | put(text)) for text in texts)
        for text, answer in zip(texts, post_all(handy.live.port, path, bodies, key=handy.keys["ops"]), strict=True):
            assert answer.status == 200, (path, text, answer.body)


def test_every_naughty_string_comes_back_from_its_tokens(handy: Keyed) -> None:
    port, key, texts = handy.live.port, handy.keys["ops"], [text for text in strings() if text]
    bodies = (msgspec.json.encode({"model": MODEL, "prompt": text}) for text in texts)
    tokens = [answer.json["tokens"] for answer in post_all(port, "/tokenize", bodies, key=key)]

    again = (msgspec.json.encode({"model": MODEL, "tokens": ids}) for ids in tokens)
    assert [answer.json["prompt"] for answer in post_all(port, "/detokenize", again, key=key)] == texts
