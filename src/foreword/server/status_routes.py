"""Is it there, is it ready, what does it serve, how is it doing."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.server.metrics import CONTENT_TYPE
from foreword.server.service import Service


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def status_routes(service: Service) -> list[Route]:
    """`/health`, `/ready`, `/v1/models`, `/metrics`."""

    async def health(request: Request) -> Response:
        healthy = service.is_healthy()
        return json_response({"status": "ok" if healthy else "failed"}, 200 if healthy else 503)

    async def ready(request: Request) -> Response:
        refusal = service.engine.refusal
        if refusal is None and service.is_healthy():
            return json_response({"status": "ready"})
        retry = {"retry-after": str(service.limits.retry_after_s)}
        return json_response({"status": refusal or "failed"}, 503, retry)

    async def models(request: Request) -> Response:
        return json_response({"object": "list", "data": [_model(service, name) for name in service.names]})

    async def model(request: Request) -> Response:
        service.check_model(request.path_params["model"])
        return json_response(_model(service, request.path_params["model"]))

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    return [
        Route("/health", health),
        Route("/ready", ready),
        Route("/v1/models", models),
        Route("/v1/models/{model}", model),
        Route("/metrics", metrics),
    ]


def _model(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "foreword",
        "max_model_len": service.max_model_len,
    }
