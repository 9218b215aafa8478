"""What routes answer, as types: foreword's own routes and what dialects share. A test holds real answers to them.

Handlers write plain objects; these types only describe. They allow no field that isn't named, so one that is added or
taken away fails a test. `UNSET` marks a field that is there in some answers only.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import fields

from foreword.core.finding import Finding
from foreword.engine.metrics import EngineStats
from foreword.engine.traffic import TrafficSummary


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """Has the named fields and no others."""


class OpenAIErrorDetail(Answer):
    """`param` is the request's field, where one is to blame."""

    message: str
    type: Literal[
        "authentication_error", "invalid_request_error", "permission_error", "rate_limit_error", "server_error"
    ]
    param: str | None
    code: str | None


class OpenAIError(Answer):
    """An error of OpenAI's routes and of foreword's own."""

    error: OpenAIErrorDetail


class AnthropicErrorDetail(Answer):
    """The message begins with the request's field, where one is to blame."""

    type: Literal[
        "api_error",
        "authentication_error",
        "invalid_request_error",
        "not_found_error",
        "overloaded_error",
        "permission_error",
        "rate_limit_error",
        "request_too_large",
        "timeout_error",
    ]
    message: str


class AnthropicError(Answer, tag="error"):
    """An error of Anthropic's routes."""

    error: AnthropicErrorDetail


class CohereError(Answer):
    """An error of Cohere's route."""

    message: str


class FullDetail(Answer):
    """OpenAI's and Anthropic's fields in one."""

    message: str
    type: Literal["overloaded_error"]
    param: None
    code: Literal["too_many_connections"]


class FullError(Answer, tag="error"):
    """Whatever was asked: more connections are open than the server takes, and the request wasn't read."""

    error: FullDetail
    message: str


class HealthAnswer(Answer):
    """Whether the engine answers."""

    status: Literal["ok", "failed"]


class ReadyAnswer(Answer):
    """`ready`, or why requests are refused."""

    status: str


class ModelAnswer(Answer):
    """A name that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answer):
    """All names that are served."""

    object: Literal["list"]
    data: list[ModelAnswer]


class TokenizeAnswer(Answer):
    """Token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class TextAnswer(Answer):
    """Text, as the model reads it."""

    prompt: str


class WarmAnswer(Answer):
    """What of a prompt was read and what is newly stored."""

    prompt_tokens: int
    cached_tokens: int
    written_tokens: int


class QueryAnswer(Answer):
    """What of a prompt would be read now."""

    prompt_tokens: int
    cached_tokens: int


class ExplainAnswer(Answer):
    """Where a prompt parts from what is stored, and why."""

    prompt_tokens: int
    matched_tokens: int
    cause: Literal[
        "none", "never seen", "changed", "evicted", "expired", "other namespace", "under minimum", "bypassed"
    ]
    before: str
    wanted: str | None
    stored: str | None
    missed_tokens: int
    missed_s: float | None
    message_index: int | UnsetType | None = UNSET


class ResetAnswer(Answer):
    """Everything stored is forgotten."""

    status: Literal["reset"]


class ResponseCacheState(Answer):
    """What whole answers take."""

    entries: int
    bytes: int


def _fields_of(kind: type) -> list[tuple[str, Any]]:
    """Fields of one of the engine's records."""
    return [(field.name, field.type) for field in fields(kind)]


CacheStats: type[msgspec.Struct] = msgspec.defstruct(
    "CacheStats",
    [
        *_fields_of(EngineStats),
        ("block_size", int),
        ("invariants", Literal["hold"]),
        ("response_cache", ResponseCacheState | UnsetType, UNSET),
    ],
    bases=(Answer,),
    namespace={"__doc__": "The pool and the engine's counters at one moment."},
    kw_only=True,
)

TrafficAnswer: type[msgspec.Struct] = msgspec.defstruct(
    "TrafficAnswer",
    [*_fields_of(TrafficSummary), ("hit_ratio", float)],
    bases=(Answer,),
    namespace={"__doc__": "The last hour."},
    kw_only=True,
)

DoctorAnswer: type[msgspec.Struct] = msgspec.defstruct(
    "DoctorAnswer",
    [("ok", bool), ("checks", list[Finding]), ("traffic", TrafficAnswer)],
    bases=(Answer,),
    namespace={"__doc__": "A check-up."},
    kw_only=True,
)
