"""Holds what a server answers to what `/openapi.json` says of it."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from foreword.server.errors import anthropic_body, cohere_body, dialect_of
from foreword.server.openapi.answers import AnthropicError, CohereError, FullError, OpenAIError
from foreword.server.openapi.operations import OPERATIONS, Operation

ERRORS: Mapping[Any, type[msgspec.Struct]] = {anthropic_body: AnthropicError, cohere_body: CohereError}


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    paths = sorted(OPERATIONS, key=lambda path: "{" in path)  # a path by its name goes before a pattern
    return [(re.compile(re.sub(r"{\w+}", "[^/]+", path)), path) for path in paths]


def operation_of(method: str, target: str) -> tuple[str, Operation] | None:
    """The route that answers, as it is described; None where there is none."""
    found = target.partition("?")[0]
    for pattern, path in _patterns():
        operation = OPERATIONS[path].get(method.lower())  # type: ignore[call-overload]  # any method may be asked for
        if pattern.fullmatch(found) and operation is not None:
            return path, operation
    return None


def check_described(method: str, target: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Fail unless an answer is one that the document promises."""
    found = operation_of(method, target)
    if found is None or status == 304:
        return
    path, operation = found
    kind = headers["content-type"].partition(";")[0]
    if status != 200:
        assert status in operation.statuses(path), (method, target, status)
        error = operation.unavailable if status == 503 and operation.unavailable else ERRORS.get(dialect_of(path))
        if status == 503 and b'"too_many_connections"' in body:
            error = FullError
        assert kind == "application/json"
        decode(body, error or OpenAIError)
        if status == 400 and operation.body is not None:
            check_named(path, json.loads(body), operation.body)
    elif kind == "text/event-stream":
        assert operation.events
        check_events(body, operation)
    elif operation.answer is None:
        assert kind == operation.media
    else:
        assert kind == "application/json"
        decode(body, operation.answer)
        if operation.tells_tokens:
            assert headers["foreword-prompt-tokens"].isdecimal()


def check_events(body: bytes, operation: Operation) -> None:
    """Fail unless each event is one of those named, and the last what it is said to be; or an error, which ends all."""
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    assert lines, "a stream of no events"
    if operation.last_event is not None:
        last = lines.pop()
        if last == operation.last_event:
            assert lines, "a stream that only ends"
        else:
            assert last.startswith("{"), last
            assert "error" in json.loads(last), f"a stream that is cut off after {last[:2000]}"
            decode(last.encode(), operation.events[-1])
    for line in lines:
        decode(line.encode(), operation.events[0])


def decode(data: bytes, kind: Any) -> None:
    """Fail unless JSON is of a type, to the field."""
    try:
        msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise AssertionError(f"{error}: {data[:2000]!r}") from None


def check_named(path: str, error: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Fail unless an error names a field that the client may send, or no field."""
    told = error.get("error", error)
    fields = set(kind.__struct_encode_fields__)
    if "param" in told:
        if told["code"] == "unknown_parameter" or told["param"] is None:
            return
        root = re.split(r"[.\[]", told["param"], maxsplit=1)[0]
        assert root in fields, (path, told)
        assert root in told["message"], (path, told)
    else:
        named = re.match(r"([a-z_0-9]+)[^\s:]*: ", told["message"])
        assert named is None or named[1] in fields or "unknown field" in told["message"], (path, told)
