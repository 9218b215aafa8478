"""The prefix cache over HTTP: warm it, ask it, let it explain a miss; and for the operator its state and a reset."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.core.errors import InvalidRequestError
from foreword.core.sampling_params import SamplingParams
from foreword.core.types import TokenId
from foreword.kv_cache.explain import MissCause, MissReport
from foreword.server.openai.logprobs import token_name
from foreword.server.prompt_body import PromptBody, asker_for, encoder
from foreword.server.prompts import Prompt
from foreword.server.service import Service
from foreword.server.sse import collect
from foreword.server.status_routes import json_response

EXCERPT_TOKENS = 24
"""Tokens of the request's own text shown before the place where it parts from what is stored."""


class CacheBody(PromptBody, kw_only=True, forbid_unknown_fields=True):
    """Body of `/cache/warm`, `/cache/query` and `/cache/explain`."""


class ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `/cache/reset`: an empty object."""


def cache_routes(service: Service) -> list[Route]:
    """The routes, bound to a service."""
    decoder, reset_decoder = msgspec.json.Decoder(CacheBody), msgspec.json.Decoder(ResetBody)

    async def warm(request: Request) -> Response:
        body = await service.bodies.read(request, decoder)
        asker = asker_for(request, body)
        encode, params = encoder(service, body, asker), SamplingParams(max_tokens=1)
        generation = await service.generate(lambda: [encode()], params, asker, prefill_only=True)
        await collect(generation, request)
        account = generation.account
        answer = {"prompt_tokens": account.prompt, "cached_tokens": account.read, "written_tokens": account.written}
        return json_response(answer, headers=account.headers())

    async def query(request: Request) -> Response:
        body = await service.bodies.read(request, decoder)
        asker = asker_for(request, body)
        ids, namespace = _ids(await service.queued(encoder(service, body, asker))), asker.namespace
        cached = await service.engine.run(lambda engine: engine.query_cache(namespace, ids))
        return json_response({"prompt_tokens": len(ids), "cached_tokens": cached})

    async def explain(request: Request) -> Response:
        body = await service.bodies.read(request, decoder)
        asker = asker_for(request, body)
        ids, namespace = _ids(await service.queued(encoder(service, body, asker))), asker.namespace
        report = await service.engine.run(lambda engine: engine.explain_cache(namespace, ids))
        if service.emulation is not None and len(ids) < service.emulation.minimum(body.model):
            report = replace(report, cause=MissCause.UNDER_MINIMUM)
        answer = _told(service, ids, report, is_operator=asker.tenant.is_operator)
        answer |= cost_of_miss(len(ids), report, service.loaded.engine.traffic.prefill_tok_s)
        messages = body.template_messages()
        if messages is not None and report.cause is not MissCause.NONE:
            tools = body.template_tools()
            at = report.matched_tokens
            place = await service.off_loop(lambda: message_at(service, messages, tools, namespace, at))
            answer["message_index"] = place
        return json_response(answer)

    async def stats(request: Request) -> Response:
        await service.engine.run(lambda engine: engine.check_invariants())
        found = await service.engine.run(lambda engine: engine.stats())
        answer = {**asdict(found), "block_size": service.loaded.summary.block_size, "invariants": "hold"}
        if (responses := service.responses) is not None:
            answer["response_cache"] = {"entries": responses.num_entries, "bytes": responses.num_bytes}
        return json_response(answer)

    async def reset(request: Request) -> Response:
        await service.bodies.read(request, reset_decoder)
        await service.engine.run(lambda engine: engine.reset_cache())
        if service.responses is not None:
            service.responses.reset()
        return json_response({"status": "reset"})

    return [
        Route("/cache/warm", warm, methods=["POST"]),
        Route("/cache/query", query, methods=["POST"]),
        Route("/cache/explain", explain, methods=["POST"]),
        Route("/cache/stats", stats, methods=["GET"]),
        Route("/cache/reset", reset, methods=["POST"]),
    ]


def cost_of_miss(prompt_tokens: int, report: MissReport, prefill_tok_s: float | None) -> dict[str, object]:
    """Tokens that could have been read and are not, and the seconds they take at the rate measured so far."""
    missed = prompt_tokens - 1 - report.matched_tokens
    return {"missed_tokens": missed, "missed_s": missed / prefill_tok_s if prefill_tok_s else None}


def message_at(
    service: Service,
    messages: Sequence[dict[str, object]],
    tools: Sequence[dict[str, object]],
    namespace: bytes,
    position: int,
) -> int | None:
    """Index of the message that a token of the rendered conversation belongs to; None when that can't be told.

    Found by the length of the rendered beginnings, halving: about log2(messages) renderings.
    """
    low, high = 0, len(messages) - 1
    try:
        while low < high:
            middle = (low + high) // 2
            part = messages[: middle + 1]
            begun = service.prompts.encode_chat(part, namespace, tools=tools, add_generation_prompt=False)
            low, high = (low, middle) if position < len(begun.token_ids) else (middle + 1, high)
    except InvalidRequestError:
        return None  # a template may refuse a conversation that stops there
    return low


def _told(service: Service, ids: Sequence[int], report: MissReport, *, is_operator: bool) -> dict[str, object]:
    cause, stored = report.cause, report.stored_token
    if cause is MissCause.OTHER_NAMESPACE and not is_operator:
        cause = MissCause.NEVER_SEEN  # what others have stored is not told
    position = report.matched_tokens
    before = ids[max(0, position - EXCERPT_TOKENS) : position]
    return {
        "prompt_tokens": len(ids),
        "matched_tokens": position,
        "cause": cause.value,
        "before": service.tokenizer.decode(before, skip_special_tokens=False),
        "wanted": None if report.wanted_token is None else token_name(service.tokenizer, report.wanted_token),
        "stored": None if stored is None else token_name(service.tokenizer, stored),
    }


def _ids(prompt: Prompt) -> list[TokenId]:
    return [TokenId(token) for token in prompt.token_ids]
