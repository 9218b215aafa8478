"""`/v1/responses`: answer, look again, delete, list what was answered."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.server.cache_policy.diagnostics import RequestMemory
from foreword.server.context import asker_of, name_fields, tenant_of
from foreword.server.errors import ApiError, unsupported
from foreword.server.openai.responses_answer import ResponseAnswer, ResponseWriter
from foreword.server.openai.responses_diagnosis import diagnose
from foreword.server.openai.responses_prompt import count_tokens, make_prompt
from foreword.server.openai.responses_schema import InputTokensRequest, ResponsesRequest
from foreword.server.openai.responses_store import ResponseStore, StoredResponse, items_of
from foreword.server.prompts import Prompt
from foreword.server.response_fields import question_of
from foreword.server.service import Service
from foreword.server.sse import EventStream, collect
from foreword.server.status_routes import json_response
from foreword.server.tool_use import params_and_tools

DEFAULT_PAGE, MAX_PAGE = 20, 100
FIELD_NAMES = {
    "messages": "input",
    "prompt": "input",
    "chat_template": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Of the engine, and of chat, which a request for a response becomes."""


def response_routes(service: Service) -> list[Route]:
    """The routes, bound to a service."""
    store = ResponseStore(service.stored_responses)
    decoder, memory = msgspec.json.Decoder(ResponsesRequest), RequestMemory()
    count_decoder = msgspec.json.Decoder(InputTokensRequest)

    async def create(request: Request) -> Response:
        body = await service.bodies.read(request, decoder)
        service.check_model(body.model)
        name_fields(request, **FIELD_NAMES)
        asker, template = asker_of(request, body.cache_salt), service.prompts.chat_template
        params, _, calls = await service.digest(request, lambda: params_and_tools(body, template))
        chain = store.chain(asker.tenant.domain, body.previous_response_id)
        answer = ResponseAnswer(service, body, params, calls)

        def encode() -> Sequence[Prompt]:
            prompt = make_prompt(service, body, asker, chain, answer)
            answer.diagnostics = diagnose(service, memory, body, asker, prompt, answer.id)
            return [prompt]

        warms = body.prewarms
        generation = await service.generate(
            encode,
            params,
            asker,
            prefill_only=warms,
            remember=not warms,
            question=None if warms else question_of(request, body),
            calls=calls,
        )
        if body.stream:
            writer = ResponseWriter(answer, generation, store, asker.tenant.domain)
            return EventStream(generation, writer, service.limits)
        await collect(generation, request)
        whole = answer.whole(generation)
        answer.keep(store, asker.tenant.domain, whole)
        return json_response(whole, headers=generation.account.headers())

    async def one(request: Request) -> Response:
        domain, response_id = tenant_of(request).domain, request.path_params["response_id"]
        if request.method == "DELETE":
            store.delete(domain, response_id)
            return json_response({"id": response_id, "object": "response", "deleted": True})
        stored = store.find(domain, response_id)
        if request.query_params.get("stream", "false").lower() != "false":
            raise unsupported("stream")
        return json_response(msgspec.Raw(stored.response))

    async def input_tokens(request: Request) -> Response:
        given = await service.bodies.read(request, count_decoder)
        service.check_model(given.model or service.names[0])
        name_fields(request, **FIELD_NAMES)
        body = await service.digest(request, lambda: given.as_request(service.names[0]))
        asker = asker_of(request, body.cache_salt)
        chain = store.chain(asker.tenant.domain, body.previous_response_id)
        count = await service.queued(lambda: count_tokens(service, body, asker, chain))
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    async def cancel(request: Request) -> Response:
        store.find(tenant_of(request).domain, request.path_params["response_id"])
        told = "background: not supported by this server, so a stored response has ended and can't be cancelled"
        raise ApiError(400, told, "background", "unsupported_parameter")

    async def compact(request: Request) -> Response:
        told = "compact: not supported by this server; with truncation auto a response drops what there is no room for"
        raise ApiError(400, told, None, "unsupported_parameter")

    async def input_items(request: Request) -> Response:
        domain, response_id = tenant_of(request).domain, request.path_params["response_id"]
        store.find(domain, response_id)
        chain = store.chain(domain, response_id)
        return json_response(await service.off_loop(lambda: _page(chain, dict(request.query_params))))

    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
        Route("/v1/responses/compact", compact, methods=["POST"]),
        Route("/v1/responses/{response_id}/cancel", cancel, methods=["POST"]),
        Route("/v1/responses/{response_id}", one, methods=["GET", "DELETE"]),
        Route("/v1/responses/{response_id}/input_items", input_items, methods=["GET"]),
    ]


def _page(chain: Sequence[StoredResponse], query: dict[str, str]) -> dict[str, object]:
    """A page of the items that a response was made of: all before its answer, the newest first unless asked."""
    items = [item for stored in chain[:-1] for item in items_of(stored)]
    items += items_of(chain[-1], with_output=False)
    order, limit = query.get("order", "desc"), query.get("limit", str(DEFAULT_PAGE))
    if order not in ("asc", "desc"):
        raise ApiError(400, "order: expected asc or desc", "order")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MAX_PAGE):
        raise ApiError(400, f"limit: expected 1 to {MAX_PAGE}", "limit")
    found = items if order == "asc" else items[::-1]
    ids = [msgspec.json.decode(item, type=_Id).id for item in found]
    start = 0
    if "after" in query:
        if query["after"] not in ids:
            raise ApiError(400, "after: expected the id of an item of this response", "after")
        start = ids.index(query["after"]) + 1
    end = start + int(limit)
    return {
        "object": "list",
        "data": found[start:end],
        "first_id": ids[start] if found[start:end] else "",
        "last_id": ids[min(end, len(ids)) - 1] if found[start:end] else "",
        "has_more": end < len(found),
    }


class _Id(msgspec.Struct):
    id: str
