"""`/rerank` (Cohere's and Jina's shape in one) and `/score` (vLLM's): documents by the probability of a label.

All documents of a request are submitted together, and the scheduler computes what their prompts begin with once.
"""

import time
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.core.probe import Probe
from foreword.core.sampling_params import SamplingParams
from foreword.llm.outputs import RequestOutput, ScoreOutput
from foreword.llm.readings import as_pairs, ranked, relevance
from foreword.server.account import Account
from foreword.server.context import asker_of, name_fields
from foreword.server.ids import new_hex
from foreword.server.prompts import Prompt
from foreword.server.rerank_schema import PromptFields, RerankRequest, ScoreRequest
from foreword.server.service import Service
from foreword.server.sse import collect
from foreword.server.status_routes import json_response
from foreword.text.rerank_prompt import RerankPrompts

RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
SCORE_PATHS = ("/score", "/v1/score")


def rerank_routes(service: Service) -> list[Route]:
    """The routes, bound to a service."""
    rerank_decoder, score_decoder = msgspec.json.Decoder(RerankRequest), msgspec.json.Decoder(ScoreRequest)

    async def rerank(request: Request) -> Response:
        body = await service.bodies.read(request, rerank_decoder)
        service.check_model(body.model)
        name_fields(request, prompt="documents", chat_template="documents")
        texts = body.texts()
        scores, account = await _score(service, request, body, [(body.query, text) for text in texts])
        output = ranked(scores, body.top_n)
        results: list[dict[str, object]] = []
        for result in output.results:
            shown = {"document": {"text": texts[result.index]}} if body.return_documents else {}
            results.append({"index": result.index, "relevance_score": result.relevance_score, **shown})
        answer = {
            "id": f"rerank-{new_hex(16)}",
            "model": body.model,
            "results": results,
            "usage": account.prompt_only(),
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": account.prompt, "output_tokens": 0},
                "cached_tokens": account.read,
                "warnings": _warnings(output.cut_documents),
            },
        }
        return json_response(answer, headers=account.headers())

    async def score(request: Request) -> Response:
        body = await service.bodies.read(request, score_decoder)
        service.check_model(body.model)
        first, second = body.pair()
        named = {"query": first, "text_1": first, "text_2": second}
        name_fields(request, **named, **dict.fromkeys(("prompt", "documents", "chat_template"), second))
        pairs = as_pairs(getattr(body, first), getattr(body, second))
        scores, account = await _score(service, request, body, pairs)
        answer = {
            "id": f"embd-{new_hex(16)}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model,
            "data": [{"index": i, "object": "score", "score": s.score} for i, s in enumerate(scores)],
            "usage": account.prompt_only(),
            "warnings": _warnings([i for i, s in enumerate(scores) if s.is_cut]),
        }
        return json_response(answer, headers=account.headers())

    return [
        *(Route(path, rerank, methods=["POST"]) for path in RERANK_PATHS),
        *(Route(path, score, methods=["POST"]) for path in SCORE_PATHS),
    ]


async def _score(
    service: Service, request: Request, body: PromptFields, pairs: Sequence[tuple[str, str]]
) -> tuple[list[ScoreOutput], Account]:
    """One score a pair, in order, and the account of all."""
    settings = body.settings()
    prompts = await service.queued(lambda: RerankPrompts(service.prompts.rerank_format, settings, service.tokenizer))
    cut: list[bool] = []
    generation = await service.generate(
        lambda: _encode(service, prompts, pairs, cut),
        SamplingParams(max_tokens=1),
        asker_of(request, body.cache_salt),
        probe=Probe(token_ids=prompts.label_ids),
    )
    await collect(generation, request)
    outputs = zip(generation.outputs, cut, strict=True)
    return [ScoreOutput(_relevance(output), output.usage, is_cut) for output, is_cut in outputs], generation.account


def _encode(
    service: Service, prompts: RerankPrompts, pairs: Sequence[tuple[str, str]], cut: list[bool]
) -> list[Prompt]:
    """The prompts; `cut` is filled with whether each document was too long. In a text thread."""
    before: dict[str, list[int]] = {}
    made = []
    for query, document in pairs:
        if query not in before:
            service.prompts.check_size(query, "query")
            before[query] = prompts.before(query)
        ids, is_cut = prompts.prompt(before[query], document, service.max_model_len - 1)
        made.append(Prompt(ids))
        cut.append(is_cut)
    return made


def _relevance(output: RequestOutput) -> float:
    assert output.reading is not None
    return relevance(output.reading)


def _warnings(cut: Sequence[int]) -> list[str]:
    if not cut:
        return []
    shown = ", ".join(map(str, cut[:20])) + (", …" if len(cut) > 20 else "")
    return [f"{len(cut)} documents were longer than they may be and were cut: {shown}"]
