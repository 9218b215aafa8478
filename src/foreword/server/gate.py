"""The gate every request passes: an id, a look at who asks, a log line, and no exception beyond it.

Deny by default: without a key only the paths of `OPEN_PATHS` are answered, compared as they are, before any routing.
On a server without keys the Host header must name this machine, so that no web page can reach it by another name.
"""

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foreword.core.errors import UnavailableError
from foreword.server.connections import Connection
from foreword.server.context import SCOPE_KEY, RequestContext
from foreword.server.errors import ApiError, ClientGoneError, as_api_error, error_response
from foreword.server.ids import new_hex
from foreword.server.logs import log, logger
from foreword.server.service import Service
from foreword.server.tenants import Tenant

OPEN_PATHS = frozenset({"/health", "/ready"})
OPERATOR_PATHS = frozenset({"/metrics", "/cache/stats", "/cache/reset", "/doctor"})
OPEN_WITHOUT_KEYS = frozenset({"/metrics"})  # of the operator's: a server without keys has no operator
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

CONNECTION_KEY = "foreword.connection"
"""Of the scope: the `Connection` a request has come by, where the server knows it."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PORT = re.compile(r":\d{1,5}$")


class Gate:
    """ASGI application around the routes. `hosts` are names of this machine beside the loopback's."""

    def __init__(self, app: ASGIApp, service: Service, *, routes: Mapping[str, object], hosts: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._paths = frozenset(routes)
        self._hosts = LOOPBACK_HOSTS | hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        context = RequestContext(given_id(headers) or new_id())
        scope[SCOPE_KEY] = context

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                ids = [(name, context.request_id.encode()) for name in (b"x-request-id", b"request-id")]
                left = {} if context.permit is None or context.status == 429 else context.permit.headers()
                told = [(name.encode(), value.encode()) for name, value in left.items()]
                message = {**message, "headers": [*message.get("headers", ()), *ids, *told]}
            await send(message)

        try:
            context.tenant = self.admit(scope["path"], headers)
            with self._kept(scope, context.tenant):
                if context.tenant is not None and scope["method"] == "POST" and scope["path"] not in OPERATOR_PATHS:
                    context.permit = self._service.permit(context.tenant)
                await self._app(scope, receive, send_noted)
        except Exception as error:
            await self._failed(error, context, scope, receive, send_noted)
        except asyncio.CancelledError:
            context.facts["error"] = "shutdown"  # the server ends, and its patience has: nobody waits for this task
        finally:
            if context.permit is not None:
                context.permit.leave()
            self.note(context, scope["method"], scope["path"])

    @contextmanager
    def _kept(self, scope: Scope, tenant: Tenant | None) -> Iterator[None]:
        """While a tenant's request is under way nobody takes its connection's place; refuses who has their share."""
        connection: Connection | None = scope.get(CONNECTION_KEY)
        if connection is None or tenant is None or scope["path"] in OPEN_PATHS:
            yield
            return
        connection.keep(self._service.share_of(tenant))
        try:
            yield
        finally:
            connection.release()

    def _check_head(self, headers: Mapping[str, str]) -> None:
        if len(headers) > self._service.limits.max_headers:
            raise ApiError(431, "too many headers", headers={"connection": "close"})
        if self._service.keys.is_open:
            host = _PORT.sub("", headers.get("host", "").lower())
            if host not in self._hosts:
                raise ApiError(403, "the Host header does not name this machine", None, "host_not_allowed")

    def admit(self, path: str, headers: Mapping[str, str]) -> Tenant | None:
        """Who asks, if they may; None where nobody needs to say. Names of headers are in small letters.

        Raises:
            ApiError, UnavailableError: they may not, or not now.
        """
        self._check_head(headers)
        keys = self._service.keys
        if keys.is_open:
            if path in OPERATOR_PATHS - OPEN_WITHOUT_KEYS:
                raise ApiError(403, "operator routes need a server with keys (--api-keys)", None, "operator_only")
            tenant: Tenant | None = keys.local
        else:
            key = _presented_key(headers)
            tenant = keys.find(key) if key else None
            if tenant is None and path not in OPEN_PATHS:
                message = "no valid API key: send it as `Authorization: Bearer …` or `x-api-key`"
                raise ApiError(401, message, None, "invalid_api_key", {"www-authenticate": "Bearer"})
            if path in OPERATOR_PATHS and tenant is not None and not tenant.is_operator:
                raise ApiError(403, "this route is the operator's", None, "operator_only")
        if self._service.engine.refusal is not None and path not in OPEN_PATHS | OPERATOR_PATHS:
            raise UnavailableError(self._service.engine.refusal)
        return tenant

    async def _failed(
        self, error: Exception, context: RequestContext, scope: Scope, receive: Receive, send: Send
    ) -> None:
        failure = as_api_error(error, retry_after_s=self._service.limits.retry_after_s)
        if isinstance(error, ClientGoneError):
            context.status = context.status or failure.status
            return
        if failure.status >= 500 and not isinstance(error, ApiError | UnavailableError):
            logger.error("a request failed", exc_info=error, extra={"fields": {"request_id": context.request_id}})
        if not context.status:
            await error_response(failure, scope["path"])(scope, receive, send)

    def note(self, context: RequestContext, method: str, path: str) -> None:
        """Count an answer, and write its line."""
        route = path if path in self._paths else "other"
        self._service.metrics.answered(route, context.status)
        log(
            "request",
            logging.DEBUG if route in OPEN_PATHS else logging.INFO,
            request_id=context.request_id,
            method=method,
            route=route,
            status=context.status,
            tenant=None if context.tenant is None else context.tenant.name,
            duration_s=round(context.age_s, 4),
            **context.facts,
        )


def given_id(headers: Mapping[str, str]) -> str | None:
    """The client's own id for its request, if it gave a plain one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else None


def new_id() -> str:
    """An id for a request that has none."""
    return f"req_{new_hex(12)}"


def _presented_key(headers: Mapping[str, str]) -> str | None:
    """The key a client sends; None when there is none, or two that differ."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = {headers.get("x-api-key"), bearer.strip() if scheme.lower() == "bearer" else None} - {None, ""}
    return given.pop() if len(given) == 1 else None
