"""`/tokenize`, `/detokenize`, `/apply-template`: what a prompt is to the model, without running it."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.server.context import name_fields
from foreword.server.errors import ApiError
from foreword.server.openai.logprobs import token_name
from foreword.server.prompt_body import PromptBody, asker_for, encoder
from foreword.server.service import Service
from foreword.server.status_routes import json_response


class TokenizeBody(PromptBody, kw_only=True, forbid_unknown_fields=True):
    """Body of `/tokenize`; vLLM's names."""

    add_special_tokens: bool = True  # of text: the beginning-of-text token, where the model wants one
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `/detokenize`."""

    model: str
    tokens: list[int]


class TemplateBody(PromptBody, kw_only=True, forbid_unknown_fields=True):
    """Body of `/apply-template`: messages only."""


def text_routes(service: Service) -> list[Route]:
    """The routes, bound to a service."""
    tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
    detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
    template_decoder = msgspec.json.Decoder(TemplateBody)
    tokenizer = service.tokenizer

    async def tokenize(request: Request) -> Response:
        body = await service.bodies.read(request, tokenize_decoder)
        ids = (await service.queued(encoder(service, body, asker_for(request, body)))).token_ids
        if isinstance(body.prompt, str) and not body.add_special_tokens:
            text = body.prompt  # checked in length by the encoder
            ids = await service.off_loop(lambda: tokenizer.encode(text, add_special_tokens=False))
        answer: dict[str, object] = {"count": len(ids), "max_model_len": service.max_model_len, "tokens": ids}
        if body.return_token_strs:
            answer["token_strs"] = [token_name(tokenizer, token) for token in ids]
        return json_response(answer)

    async def detokenize(request: Request) -> Response:
        body = await service.bodies.read(request, detokenize_decoder)
        service.check_model(body.model)
        if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < tokenizer.vocab_size:
            raise ApiError(400, f"tokens: expected ids from 0 to {tokenizer.vocab_size - 1}", "tokens")
        text = await service.off_loop(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
        return json_response({"prompt": text})

    async def apply_template(request: Request) -> Response:
        body = await service.bodies.read(request, template_decoder)
        service.check_model(body.model)
        messages = body.template_messages()
        name_fields(request, chat_template="messages")
        if messages is None:
            raise ApiError(400, "messages: expected messages", "messages")
        tools, add = body.template_tools(), body.add_generation_prompt
        text = await service.queued(
            lambda: service.prompts.render_chat(messages, tools=tools, add_generation_prompt=add)
        )
        return json_response({"prompt": text})

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/apply-template", apply_template, methods=["POST"]),
    ]
