"""`/v1/embeddings`: the last token's hidden state, after the final norm, at length one."""

import base64
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.core.probe import Reading
from foreword.core.sampling_params import SamplingParams
from foreword.llm.readings import EMBEDDING, check_dimensions, embedding
from foreword.server.context import asker_of, name_fields
from foreword.server.errors import ApiError
from foreword.server.limits import MAX_INPUTS
from foreword.server.service import Service
from foreword.server.sse import collect
from foreword.server.status_routes import json_response
from foreword.server.tenants import check_salt

EMBEDDING_IGNORED = ("user",)


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/embeddings`."""

    model: str
    input: str | list[str | int | list[int]]
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    cache_salt: str | None = None
    user: Any = None

    def prompts(self, max_model_len: int) -> list[str | list[int]]:
        """Texts or token ids, one a vector.

        Raises:
            ApiError: 400.
        """
        given = self.input
        if isinstance(given, str):
            return [given]
        if len(given) > max(MAX_INPUTS, max_model_len):
            raise ApiError(400, f"input: expected at most {MAX_INPUTS} texts, or {max_model_len} token ids", "input")
        ids = [part for part in given if isinstance(part, int)]
        if ids and len(ids) == len(given):
            return [ids]
        if not 0 < len(given) <= MAX_INPUTS:
            raise ApiError(400, f"input: expected 1 to {MAX_INPUTS} texts", "input")
        texts = [part for part in given if isinstance(part, str)]
        lists = [part for part in given if isinstance(part, list)]
        if len(texts) != len(given) and len(lists) != len(given):
            raise ApiError(400, "input: expected text, token ids, or a list of one of them", "input")
        return [*texts, *lists]


def embedding_routes(service: Service) -> list[Route]:
    """The route, bound to a service."""
    decoder = msgspec.json.Decoder(EmbeddingRequest)

    async def embed(request: Request) -> Response:
        body = await service.bodies.read(request, decoder)
        service.check_model(body.model)
        name_fields(request, prompt="input")
        check_salt(body.cache_salt)
        check_dimensions(body.dimensions, service.loaded.model.config.hidden_size)
        prompts = body.prompts(service.max_model_len)
        generation = await service.generate(
            lambda: [service.prompts.encode_prompt(prompt, "input") for prompt in prompts],
            SamplingParams(max_tokens=1),
            asker_of(request, body.cache_salt),
            probe=EMBEDDING,
        )
        await collect(generation, request)
        readings = [output.reading for output in generation.outputs]
        data = await service.off_loop(lambda: [_entry(i, reading, body) for i, reading in enumerate(readings)])
        answer = {"object": "list", "data": data, "model": body.model, "usage": generation.account.prompt_only()}
        return json_response(answer, headers=generation.account.headers())

    return [Route("/v1/embeddings", embed, methods=["POST"])]


def _entry(index: int, reading: Reading | None, body: EmbeddingRequest) -> dict[str, object]:
    assert reading is not None
    vector = embedding(reading, body.dimensions)
    value = base64.b64encode(vector.tobytes()).decode() if body.encoding_format == "base64" else vector.tolist()
    return {"object": "embedding", "index": index, "embedding": value}
