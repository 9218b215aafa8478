"""Puts the routes together behind the gate."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.core.errors import ForewordError
from foreword.server.anthropic.messages import message_routes
from foreword.server.cache_routes import cache_routes
from foreword.server.context import context_of
from foreword.server.doctor_routes import doctor_routes
from foreword.server.errors import ApiError, as_api_error, error_response
from foreword.server.gate import Gate
from foreword.server.openai.chat import chat_routes
from foreword.server.openai.completions import completion_routes
from foreword.server.openai.embeddings import embedding_routes
from foreword.server.openai.responses import response_routes
from foreword.server.openapi.routes import openapi_routes
from foreword.server.rerank_routes import rerank_routes
from foreword.server.service import Service
from foreword.server.status_routes import status_routes
from foreword.server.text_routes import text_routes


def all_routes(service: Service) -> list[Route]:
    """Every route of the server."""
    return [
        *status_routes(service),
        *chat_routes(service),
        *completion_routes(service),
        *embedding_routes(service),
        *response_routes(service),
        *message_routes(service),
        *rerank_routes(service),
        *text_routes(service),
        *cache_routes(service),
        *doctor_routes(service),
        *openapi_routes(service),
    ]


def make_app(service: Service, *, hosts: Iterable[str] = ()) -> Gate:
    """The whole server as an ASGI application; its lifespan starts and ends the engine."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    async def refuse(request: Request, error: Exception) -> Response:
        names = context_of(request).names
        failure = as_api_error(error, names=names, retry_after_s=service.limits.retry_after_s)
        return error_response(failure, request.scope["path"])

    async def refuse_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = {404: "no such route", 405: "this route has another method"}.get(error.status_code, error.detail)
        return error_response(ApiError(error.status_code, message, headers=error.headers or {}), request.scope["path"])

    routes = all_routes(service)
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={ApiError: refuse, ForewordError: refuse, HTTPException: refuse_http, Exception: refuse},
    )
    app.router.redirect_slashes = False
    names = {route.path: route for route in routes}
    return Gate(app, service, routes=names, hosts=frozenset(host.lower() for host in hosts))
