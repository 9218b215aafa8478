"""`/v1/messages` and `/v1/messages/count_tokens`."""

import secrets
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.llm.outputs import RequestOutput
from foreword.server.account import Account
from foreword.server.anthropic.caching import with_cache
from foreword.server.anthropic.schema import Conversation, CountRequest, MessagesRequest
from foreword.server.context import Asker, asker_of
from foreword.server.errors import ApiError, anthropic_body
from foreword.server.generation import Generation, Piece
from foreword.server.response_fields import question_of
from foreword.server.service import Prompt, Service
from foreword.server.sse import EventStream, collect, named_event
from foreword.server.status_routes import json_response


def message_routes(service: Service) -> list[Route]:
    """The routes, bound to a service."""
    message_decoder, count_decoder = msgspec.json.Decoder(MessagesRequest), msgspec.json.Decoder(CountRequest)

    async def messages(request: Request) -> Response:
        body = await service.bodies.read(request, message_decoder)
        service.check_model(body.model)
        body.check()
        answer = MessageAnswer(service, body)
        params, asker = body.sampling_params(), asker_of(request, body.cache_salt)
        encode, warms = _encoder(service, body, asker), body.max_tokens == 0
        generation = await service.generate(
            lambda: [with_cache(service, body, asker, encode())],
            params,
            asker,
            prefill_only=warms,
            remember=not warms,
            question=None if warms else question_of(request, body),  # what warms must reach the cache of prefixes
        )
        if body.stream:
            return EventStream(generation, MessageWriter(answer, generation), service.limits.ping_interval_s)
        await collect(generation, request)
        return json_response(answer.whole(generation), headers=generation.account.headers())

    async def count_tokens(request: Request) -> Response:
        body = await service.bodies.read(request, count_decoder)
        service.check_model(body.model)
        body.check()
        prompt = await service.queued(_encoder(service, body, asker_of(request, body.cache_salt)))
        return json_response({"input_tokens": len(prompt.token_ids)})

    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]


def _encoder(service: Service, body: Conversation, asker: Asker) -> Callable[[], Prompt]:
    turns, prefill = body.template_messages(), body.prefill()
    return lambda: service.encode_chat(turns, asker.namespace, prefill=prefill)


class MessageAnswer:
    """Writes one answer's objects."""

    def __init__(self, service: Service, body: MessagesRequest) -> None:
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = body.model
        self._max_tokens = body.max_tokens
        self._max_model_len = service.max_model_len

    def whole(self, generation: Generation) -> dict[str, object]:
        """The message, complete."""
        text = generation.outputs[0].outputs[0].text
        content: list[object] = [{"type": "text", "text": text, "citations": None}] if text else []
        reason, stop = self.stop(generation.outputs[0])
        return self.message(content, generation.usage, reason, stop)

    def message(
        self, content: list[object], tokens: Account, stop_reason: str | None = None, stop_sequence: str | None = None
    ) -> dict[str, object]:
        """A message object."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": {**tokens.anthropic(), "service_tier": "standard"},
        }

    def stop(self, output: RequestOutput) -> tuple[str, str | None]:
        """Why an answer ended, and the stop sequence that ended it, if one did."""
        answer = output.outputs[0]
        if answer.finish_reason == "stop":
            return ("stop_sequence", answer.stop_reason) if isinstance(answer.stop_reason, str) else ("end_turn", None)
        known = len(output.prompt_token_ids) + len(answer.token_ids)
        is_full = known >= self._max_model_len and len(answer.token_ids) < self._max_tokens
        return "model_context_window_exceeded" if is_full else "max_tokens", None


class MessageWriter:
    """Events of a message, in Anthropic's order. A block begins with the first text: an empty answer has none."""

    ping = named_event("ping", {"type": "ping"})

    def __init__(self, answer: MessageAnswer, generation: Generation) -> None:
        self._answer = answer
        self._generation = generation
        self._has_begun = False
        self._has_block = False

    def pieces(self, pieces: Sequence[Piece]) -> bytes:
        """The beginning, and text as it comes."""
        return b"".join([part for piece in pieces for part in self._piece(piece)])

    def end(self) -> bytes:
        """The reason, the account and the end."""
        reason, stop = self._answer.stop(self._generation.outputs[0])
        delta = {"stop_reason": reason, "stop_sequence": stop}
        usage = self._generation.usage.anthropic()
        del usage["cache_creation"]  # a delta's usage has no such field
        parts = [_event("content_block_stop", index=0)] if self._has_block else []
        parts += [_event("message_delta", delta=delta, usage=usage), _event("message_stop")]
        return b"".join(parts)

    def error(self, error: ApiError) -> bytes:
        """The event at which clients raise."""
        return named_event("error", anthropic_body(error))

    def _piece(self, piece: Piece) -> list[bytes]:
        parts = []
        if not self._has_begun:
            self._has_begun = True
            message = self._answer.message([], self._generation.told([piece.usage]))
            parts.append(_event("message_start", message=message))
        if piece.text:
            if not self._has_block:
                self._has_block = True
                block = {"type": "text", "text": "", "citations": None}
                parts.append(_event("content_block_start", index=0, content_block=block))
            parts.append(_event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece.text}))
        return parts


def _event(name: str, **fields: object) -> bytes:
    return named_event(name, {"type": name, **fields})
