"""The OpenAPI 3.1 document, assembled from the table of operations and the types it names."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from foreword import __version__
from foreword.server.anthropic.schema import MESSAGES_IGNORED, MESSAGES_REFUSED, CountRequest, MessagesRequest
from foreword.server.openai.embeddings import EMBEDDING_IGNORED, EmbeddingRequest
from foreword.server.openai.responses_schema import (
    INPUT_TOKENS_IGNORED,
    INPUT_TOKENS_REFUSED,
    RESPONSES_IGNORED,
    RESPONSES_REFUSED,
    InputTokensRequest,
    ResponsesRequest,
)
from foreword.server.openai.schema import (
    CHAT_IGNORED,
    CHAT_REFUSED,
    COMPLETION_IGNORED,
    COMPLETION_REFUSED,
    ChatRequest,
    CompletionRequest,
)
from foreword.server.openapi.answers import AnthropicError, CohereError, FullError, OpenAIError
from foreword.server.openapi.operations import OPERATIONS, Operation, error_type
from foreword.server.rerank_schema import RERANK_IGNORED, RERANK_REFUSED, SCORE_IGNORED, RerankRequest, ScoreRequest

_SCHEMAS = "#/components/schemas/{name}"
_TOKEN_HEADERS = ("foreword-prompt-tokens", "foreword-cached-tokens", "foreword-written-tokens")
FIELD_CLASSES: Mapping[type[msgspec.Struct], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ChatRequest: (CHAT_IGNORED, CHAT_REFUSED),
    CompletionRequest: (COMPLETION_IGNORED, COMPLETION_REFUSED),
    ResponsesRequest: (RESPONSES_IGNORED, RESPONSES_REFUSED),
    InputTokensRequest: (INPUT_TOKENS_IGNORED, INPUT_TOKENS_REFUSED),
    EmbeddingRequest: (EMBEDDING_IGNORED, ()),
    MessagesRequest: (MESSAGES_IGNORED, MESSAGES_REFUSED),
    CountRequest: (MESSAGES_IGNORED, MESSAGES_REFUSED),
    RerankRequest: (RERANK_IGNORED, RERANK_REFUSED),
    ScoreRequest: (SCORE_IGNORED, ()),
}
"""Of each body: fields without effect, and fields that are refused."""
_DESCRIPTION = (
    "OpenAI's, Anthropic's, Cohere's and vLLM's routes over one local model, and its cache. On a server without keys "
    "any key will do, and none. A field that is not described is refused."
)


class Document(Struct, frozen=True):
    """The document as it is sent, and its tag."""

    body: bytes
    etag: str


@cache
def openapi_document() -> Document:
    """The document; made once. Cost: some tens of milliseconds the first time, so not for the event loop."""
    body = msgspec.json.encode(make_document())
    return Document(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def make_document() -> dict[str, Any]:
    """The same as plain objects."""
    types = list(dict.fromkeys([*_types(), OpenAIError, AnthropicError, CohereError, FullError]))
    found, components = msgspec.json.schema_components(types, ref_template=_SCHEMAS)
    schemas = dict(zip(types, found, strict=True))
    paths = {
        path: {method: _operation(path, method, operation, schemas) for method, operation in methods.items()}
        for path, methods in OPERATIONS.items()
    }
    _tell_classes(components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "foreword",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": _plain(components),
            "responses": {
                kind.__name__: {"description": "An error", "content": _json(schemas[kind])}
                for kind in (OpenAIError, AnthropicError, CohereError)
            },
            "headers": {name: {"schema": {"type": "integer", "minimum": 0}} for name in _TOKEN_HEADERS},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _types() -> Iterator[Any]:
    """Every type that the operations name."""
    for methods in OPERATIONS.values():
        for operation in methods.values():
            yield from (kind for kind in (operation.body, operation.answer, *operation.events) if kind is not None)


def _operation(path: str, method: str, operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    error = error_type(path)
    refused: dict[str, Any] = {
        str(status): {"$ref": f"#/components/responses/{error.__name__}"} for status in operation.statuses(path)
    }
    refused["503"] = {
        "description": "It can't be answered now",
        "content": _json(_any_of((operation.unavailable or error, FullError), schemas)),
    }
    made: dict[str, Any] = {
        "operationId": "_".join([method, *re.findall(r"\w+", path.removesuffix(".json"))]),
        "summary": operation.summary,
        "responses": refused if operation.is_refused else {"200": _answer(operation, schemas), **refused},
    }
    parameters = _parameters(path, operation)
    if parameters:
        made["parameters"] = parameters
    if operation.body is not None:
        made["requestBody"] = {"required": True, "content": _json(schemas[operation.body])}
    if operation.is_open:
        made["security"] = []
    if operation.is_operators:
        made["tags"] = ["operator"]
    return made


def _answer(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": "Text", "content": {operation.media: {"schema": {"type": "string"}}}}
    content = _json(schemas[operation.answer])
    if operation.events:
        last = "" if operation.last_event is None else f"; the last one's data is `{operation.last_event}`"
        told = f"server-sent events, each with JSON of `x-event` as its data{last}"
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": told, "x-event": _any_of(operation.events, schemas)}
        }
    made: dict[str, Any] = {"description": "The answer", "content": content}
    if operation.tells_tokens:
        made["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in _TOKEN_HEADERS}
    return made


def _any_of(kinds: Sequence[Any], schemas: Mapping[Any, Any]) -> Any:
    return schemas[kinds[0]] if len(kinds) == 1 else {"anyOf": [schemas[kind] for kind in kinds]}


def _parameters(path: str, operation: Operation) -> list[dict[str, Any]]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    asked = [
        {"name": query.name, "in": "query", "description": query.what, "schema": dict(query.schema)}
        for query in operation.query
    ]
    return named + asked


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _tell_classes(components: dict[str, Any]) -> None:
    """Say which fields have no effect and which are refused: their types alone don't."""
    for body, (ignored, refused) in FIELD_CLASSES.items():
        properties = components[body.__name__]["properties"]
        for names, told in ((ignored, "has no effect"), (refused, "refused unless it means what is done anyway")):
            for name in names:
                if name in properties:
                    properties[name] = {**properties[name], "description": told}


def _plain(schema: Any) -> Any:
    """A schema without what says nothing: titles that repeat a name, and null as the default of what may be absent."""
    if isinstance(schema, dict):
        return {
            name: _plain(value)
            for name, value in schema.items()
            if not (name == "title" and isinstance(value, str)) and not (name == "default" and value is None)
        }
    return [_plain(value) for value in schema] if isinstance(schema, list) else schema
