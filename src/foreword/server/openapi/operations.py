"""Every route of the server, described: what it takes, what it answers, and which errors it may answer with.

A test holds this table to the routes themselves and to the types their bodies are read into, so a route that is new or
has another body fails until it is described here.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from foreword.server.anthropic.schema import CountRequest, MessagesRequest
from foreword.server.cache_routes import CacheBody, ResetBody
from foreword.server.errors import Dialect, anthropic_body, cohere_body, dialect_of
from foreword.server.openai.embeddings import EmbeddingRequest
from foreword.server.openai.responses_schema import InputTokensRequest, ResponsesRequest
from foreword.server.openai.schema import ChatRequest, CompletionRequest
from foreword.server.openapi import answers as own
from foreword.server.openapi import message_answers as anthropic
from foreword.server.openapi import openai_answers as openai
from foreword.server.openapi import response_answers as responses
from foreword.server.rerank_schema import RerankRequest, ScoreRequest
from foreword.server.text_routes import DetokenizeBody, TemplateBody, TokenizeBody

Method = Literal["get", "post", "delete"]
_COMMON = (401, 403, 429, 431, 500, 503)
_WITH_BODY = (400, 408, 413, 415)


_ERRORS: Mapping[Dialect, type[msgspec.Struct]] = {anthropic_body: own.AnthropicError, cohere_body: own.CohereError}


def error_type(path: str) -> type[msgspec.Struct]:
    """The body of a route's errors: its dialect's."""
    return _ERRORS.get(dialect_of(path), own.OpenAIError)


class Query(Struct, frozen=True):
    """A parameter in the address."""

    name: str
    schema: Mapping[str, object]
    what: str


class Operation(Struct, frozen=True, kw_only=True):
    """One method of a route. `answer` None: text of the media type; `body` None: none is read."""

    summary: str
    answer: Any = None
    media: str = "application/json"
    body: type[msgspec.Struct] | None = None
    events: tuple[Any, ...] = ()  # one of these is each of a stream, where the body asks for one
    last_event: str | None = None  # of a stream: data that is no JSON
    query: tuple[Query, ...] = ()
    errors: tuple[int, ...] = ()  # beside those that all routes of its kind have
    unavailable: Any = None  # what is answered with 503, where that is no error body
    tells_tokens: bool = False  # in headers
    is_refused: bool = False  # there to say so
    is_open: bool = False  # without a key
    is_operators: bool = False

    def statuses(self, path: str) -> list[int]:
        """Of errors, all that can be."""
        found = {*_COMMON, *self.errors, *(_WITH_BODY if self.body else ()), *((400,) if self.query else ())}
        if "{" in path or (self.body is not None and "model" in self.body.__struct_fields__):
            found.add(404)
        return sorted(found - {401, 403, 429} if self.is_open else found)


def _answering(summary: str, body: type[msgspec.Struct], answer: Any, **more: Any) -> Operation:
    """What the engine generates, and so perhaps the response cache gives."""
    return Operation(summary=summary, body=body, answer=answer, tells_tokens=True, errors=(504,), **more)


_RERANK = Operation(
    summary="Documents by how well they answer a query, in Cohere's and Jina's fields",
    body=RerankRequest,
    answer=openai.RerankAnswer,
    tells_tokens=True,
)
_SCORE = Operation(
    summary="How well documents answer their queries, in vLLM's fields",
    body=ScoreRequest,
    answer=openai.ScoreAnswer,
    tells_tokens=True,
)
_STREAM = Query("stream", {"enum": ["false"]}, "a stored response is not streamed again")

OPERATIONS: Mapping[str, Mapping[Method, Operation]] = {
    "/health": {
        "get": Operation(
            summary="Whether the engine answers", answer=own.HealthAnswer, unavailable=own.HealthAnswer, is_open=True
        )
    },
    "/ready": {
        "get": Operation(
            summary="Whether requests are taken", answer=own.ReadyAnswer, unavailable=own.ReadyAnswer, is_open=True
        )
    },
    "/openapi.json": {"get": Operation(summary="This document", answer=dict[str, Any])},
    "/v1/models": {"get": Operation(summary="Names that are served", answer=own.ModelList)},
    "/v1/models/{model}": {"get": Operation(summary="One of them", answer=own.ModelAnswer)},
    "/metrics": {
        "get": Operation(summary="Prometheus' metrics", media="text/plain", is_operators=True)  # open without keys
    },
    "/v1/chat/completions": {
        "post": _answering(
            "Answer a conversation (OpenAI)",
            ChatRequest,
            openai.ChatCompletion,
            events=(openai.ChatCompletionChunk, own.OpenAIError),
            last_event="[DONE]",
        )
    },
    "/v1/completions": {
        "post": _answering(
            "Continue text (OpenAI)",
            CompletionRequest,
            openai.TextCompletion,
            events=(openai.TextCompletion, own.OpenAIError),
            last_event="[DONE]",
        )
    },
    "/v1/responses": {
        "post": _answering(
            "Answer items (OpenAI)", ResponsesRequest, responses.ResponseObject, events=(responses.ResponseEvent,)
        )
    },
    "/v1/responses/input_tokens": {
        "post": Operation(
            summary="Count the tokens of a response's prompt", body=InputTokensRequest, answer=responses.InputTokens
        )
    },
    "/v1/responses/compact": {
        "post": Operation(summary="Not supported", errors=(400,), is_refused=True),
    },
    "/v1/responses/{response_id}/cancel": {
        "post": Operation(summary="Not supported: a stored response has ended", errors=(400,), is_refused=True)
    },
    "/v1/responses/{response_id}": {
        "get": Operation(summary="A stored response", answer=responses.ResponseObject, query=(_STREAM,)),
        "delete": Operation(summary="Forget a stored response", answer=responses.ResponseDeleted),
    },
    "/v1/responses/{response_id}/input_items": {
        "get": Operation(
            summary="What a stored response was made of",
            answer=responses.ItemList,
            query=(
                Query("order", {"enum": ["asc", "desc"], "default": "desc"}, "oldest or newest first"),
                Query("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}, "items of a page"),
                Query("after", {"type": "string"}, "id of the item before the page"),
            ),
        )
    },
    "/v1/embeddings": {
        "post": Operation(
            summary="Texts as vectors (OpenAI)",
            body=EmbeddingRequest,
            answer=openai.EmbeddingList,
            tells_tokens=True,
        )
    },
    "/v1/messages": {
        "post": _answering(
            "Answer a conversation (Anthropic)",
            MessagesRequest,
            anthropic.AnthropicMessage,
            events=(anthropic.MessageEvent,),
        )
    },
    "/v1/messages/count_tokens": {
        "post": Operation(
            summary="Count a conversation's tokens (Anthropic)", body=CountRequest, answer=anthropic.TokenCount
        )
    },
    **{path: {"post": _RERANK} for path in ("/rerank", "/v1/rerank", "/v2/rerank")},
    **{path: {"post": _SCORE} for path in ("/score", "/v1/score")},
    "/tokenize": {
        "post": Operation(
            summary="Token ids of text or of a conversation", body=TokenizeBody, answer=own.TokenizeAnswer
        )
    },
    "/detokenize": {
        "post": Operation(summary="Text of token ids", body=DetokenizeBody, answer=own.TextAnswer),
    },
    "/apply-template": {
        "post": Operation(
            summary="A conversation as the text the model reads", body=TemplateBody, answer=own.TextAnswer
        )
    },
    "/cache/warm": {
        "post": Operation(
            summary="Compute and store a prompt", body=CacheBody, answer=own.WarmAnswer, tells_tokens=True
        )
    },
    "/cache/query": {
        "post": Operation(
            summary="How many of a prompt's tokens would be read now", body=CacheBody, answer=own.QueryAnswer
        )
    },
    "/cache/explain": {
        "post": Operation(summary="Where a prompt parts from what is stored", body=CacheBody, answer=own.ExplainAnswer)
    },
    "/cache/stats": {
        "get": Operation(summary="The pool's state, checked", answer=own.CacheStats, is_operators=True),
    },
    "/cache/reset": {
        "post": Operation(
            summary="Forget all that is stored", body=ResetBody, answer=own.ResetAnswer, is_operators=True
        )
    },
    "/doctor": {"get": Operation(summary="A check-up", answer=own.DoctorAnswer, is_operators=True)},
}
"""By path and method."""
