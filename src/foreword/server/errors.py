"""What can go wrong on the wire, and how each dialect says it."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.responses import Response

from foreword.core.errors import (
    CapacityError,
    ConstraintError,
    ForewordError,
    InvalidRequestError,
    QueueFullError,
    QueueTimeoutError,
    StalledError,
    UnavailableError,
)
from foreword.server.limits import MAX_TEXT


class ApiError(Exception):
    """An answer that is an error: what a dialect needs to write its body."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code = param, code
        self.headers = headers


class ClientGoneError(ForewordError):
    """Nobody is there to read the answer."""


NO_NAMES: Mapping[str, str] = {}
Dialect = Callable[[ApiError], dict[str, object]]

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    503: "overloaded_error",
}


def openai_body(error: ApiError) -> dict[str, object]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    kind = _OPENAI_TYPES.get(error.status, kind)
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError) -> dict[str, object]:
    """`{"type": "error", "error": {"type", "message"}}`."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    is_named = error.param is None or error.param in error.message
    message = error.message if is_named else f"{error.param}: {error.message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def cohere_body(error: ApiError) -> dict[str, object]:
    """`{"message"}`."""
    is_named = error.param is None or error.param in error.message
    return {"message": error.message if is_named else f"{error.param}: {error.message}"}


def common_body(error: ApiError) -> dict[str, object]:
    """For a request that nobody has read: a client of any dialect finds its own in it."""
    openai: Any = openai_body(error)
    anthropic: Any = anthropic_body(error)
    return {**anthropic, **cohere_body(error), "error": {**openai["error"], **anthropic["error"]}}


def dialect_of(path: str) -> Dialect:
    """How errors of a path are written."""
    if path == "/v2/rerank":
        return cohere_body
    return anthropic_body if path == "/v1/messages" or path.startswith("/v1/messages/") else openai_body


def error_response(error: ApiError, path: str) -> Response:
    """The whole answer."""
    body = msgspec.json.encode(dialect_of(path)(error))
    return Response(body, error.status, dict(error.headers), "application/json")


def as_api_error(
    error: BaseException, *, param: str | None = None, names: Mapping[str, str] = NO_NAMES, retry_after_s: int = 1
) -> ApiError:
    """What a client is told of any error; of one that isn't foreword's own only that it happened.

    `param` is the request's field that is to blame, where the error can't know it; `names` are what the client calls
    fields that the engine has its own names for.
    """
    retry = {"retry-after": str(retry_after_s)}
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            named = InvalidRequestError(param or _renamed(error.field, names), error.expected, error.got)
            return ApiError(400, cut(str(named)), named.field)
        case CapacityError():
            return ApiError(400, cut(str(error)), param, "context_length_exceeded")
        case ConstraintError():
            return ApiError(400, cut(f"the answer can't go on in its form: {error.reason}"), param, "constraint_failed")
        case QueueFullError():
            return queue_full(retry_after_s if error.retry_after_s is None else error.retry_after_s)
        case QueueTimeoutError():
            return ApiError(503, f"the server is too busy: {error}", None, "queue_timeout", retry)
        case UnavailableError():
            return ApiError(503, str(error), None, "unavailable", retry)
        case StalledError() | ClientGoneError():
            return ApiError(499, str(error), None, "client_gone")
        case ForewordError():
            return ApiError(500, "the engine failed on this request", None, "engine_error")
    return ApiError(500, "internal error", None, "internal_error")


def queue_full(retry_after_s: int) -> ApiError:
    """The refusal of a request for which there is no place."""
    retry = {"retry-after": str(retry_after_s)}
    return ApiError(429, "too many requests wait; try again later", None, "rate_limit_exceeded", retry)


def _renamed(field: str, names: Mapping[str, str]) -> str:
    """A field as the client calls it; what lies below one that is called otherwise isn't told, as it may differ."""
    root = re.split(r"[.\[]", field, maxsplit=1)[0]
    return names.get(root, field)


def unsupported(name: str) -> ApiError:
    """The refusal of a field whose value would matter."""
    return ApiError(400, f"{name}: not supported by this server", name, "unsupported_parameter")


def cut(text: str) -> str:
    """Text short enough for a message."""
    return text if len(text) <= MAX_TEXT * 2 else text[: MAX_TEXT * 2 - 1] + "…"
