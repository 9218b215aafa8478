"""`/openapi.json`: behind a key like everything but health, and not sent again to a client that has kept it."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.server.service import Service

if TYPE_CHECKING:
    from foreword.server.openapi.document import Document


def openapi_routes(service: Service) -> list[Route]:
    """The route, bound to a service."""

    async def document(request: Request) -> Response:
        found = await service.off_loop(_document)
        headers = {"etag": found.etag, "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, 200, headers, "application/json")

    return [Route("/openapi.json", document, methods=["GET"])]


def _document() -> "Document":
    from foreword.server.openapi.document import openapi_document  # a hundred types, for those who ask

    return openapi_document()
