"""`/v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.llm.outputs import RequestOutput
from foreword.server.account import Account
from foreword.server.anthropic.caching import with_cache
from foreword.server.anthropic.diagnosis import diagnose
from foreword.server.anthropic.schema import Conversation, CountRequest, MessagesRequest
from foreword.server.anthropic.tools import tool_block
from foreword.server.cache_policy.diagnostics import RequestMemory
from foreword.server.call_reading import CallReader, CallReading
from foreword.server.context import Asker, asker_of, name_fields
from foreword.server.errors import ApiError, anthropic_body
from foreword.server.generation import Generation, Piece
from foreword.server.ids import new_hex
from foreword.server.prompts import Prompt
from foreword.server.response_fields import question_of
from foreword.server.service import Service
from foreword.server.sse import EventStream, EventTemplate, collect, named_event
from foreword.server.status_routes import json_response
from foreword.server.tool_use import params_and_tools
from foreword.text.early_calls import ToolCallDelta
from foreword.text.partial_json import completed_object
from foreword.text.tools import ToolCall

FIELD_NAMES = {"prompt": "messages", "chat_template": "messages", "stop": "stop_sequences"}


def message_routes(service: Service) -> list[Route]:
    """The routes, bound to a service."""
    message_decoder, count_decoder = msgspec.json.Decoder(MessagesRequest), msgspec.json.Decoder(CountRequest)

    memory = RequestMemory()

    async def messages(request: Request) -> Response:
        body = await service.bodies.read(request, message_decoder)
        name_fields(request, **FIELD_NAMES)
        service.check_model(body.model)
        asker, template = asker_of(request, body.cache_salt), service.prompts.chat_template
        params, use, calls = await service.digest(request, lambda: params_and_tools(body, template))
        answer = MessageAnswer(service, body, calls)
        encode, warms = _encoder(service, body, asker), body.max_tokens == 0
        if warms and use.mode == "required":
            raise ApiError(400, "tool_choice: no call can be made in max_tokens 0", "tool_choice")

        def encode_all() -> list[Prompt]:
            prompt = encode()
            if body.diagnostics is not None:
                answer.diagnostics = {"diagnostics": diagnose(memory, body, asker, prompt, answer.id)}
            return [with_cache(service, body, asker, prompt)]

        generation = await service.generate(
            encode_all,
            params,
            asker,
            prefill_only=warms,
            remember=not warms,
            question=None if warms else question_of(request, body),  # what warms must reach the cache of prefixes
            calls=calls,
        )
        if body.stream:
            return EventStream(generation, MessageWriter(answer, generation), service.limits)
        await collect(generation, request)
        return json_response(answer.whole(generation), headers=generation.account.headers())

    async def count_tokens(request: Request) -> Response:
        body = await service.bodies.read(request, count_decoder)
        name_fields(request, **FIELD_NAMES)
        service.check_model(body.model)
        await service.digest(request, body.check)
        prompt = await service.queued(_encoder(service, body, asker_of(request, body.cache_salt)))
        return json_response({"input_tokens": len(prompt.token_ids)})

    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]


def _encoder(service: Service, body: Conversation, asker: Asker) -> Callable[[], Prompt]:
    def encode() -> Prompt:
        turns, tools, prefill = body.template_messages(), body.tool_use().as_json(), body.prefill()
        return service.prompts.encode_chat(turns, asker.namespace, tools=tools, prefill=prefill)

    return encode


class MessageAnswer:
    """Writes one answer's objects."""

    def __init__(self, service: Service, body: MessagesRequest, calls: CallReading | None) -> None:
        self._calls = calls
        self.diagnostics: dict[str, object] = {}  # with a field of this name once it is known, if asked for
        self.id = f"msg_{new_hex(12)}"
        self._model = body.model
        self._max_tokens = body.max_tokens
        self._max_model_len = service.max_model_len

    def whole(self, generation: Generation) -> dict[str, object]:
        """The message, complete."""
        text = generation.outputs[0].outputs[0].text
        parts = self._calls.parse(text) if self._calls is not None else [text] if text else []
        has_calls = any(isinstance(part, ToolCall) for part in parts)
        reason, stop = self.stop(generation.outputs[0], has_calls=has_calls)
        return self.message([_block(part) for part in parts], generation.usage, reason, stop)

    def reader(self) -> CallReader:
        """For the stream."""
        return CallReader(self._calls)

    def message(
        self, content: list[object], tokens: Account, stop_reason: str | None = None, stop_sequence: str | None = None
    ) -> dict[str, object]:
        """A message object."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": {**tokens.anthropic(), "service_tier": "standard"},
            **self.diagnostics,
        }

    def stop(self, output: RequestOutput, *, has_calls: bool) -> tuple[str, str | None]:
        """Why an answer ended, and the stop sequence that ended it, if one did."""
        answer = output.outputs[0]
        if answer.finish_reason == "stop":
            if has_calls and not isinstance(answer.stop_reason, str):
                return "tool_use", None
            return ("stop_sequence", answer.stop_reason) if isinstance(answer.stop_reason, str) else ("end_turn", None)
        known = len(output.prompt_token_ids) + len(answer.token_ids)
        is_full = known >= self._max_model_len and len(answer.token_ids) < self._max_tokens
        return "model_context_window_exceeded" if is_full else "max_tokens", None


class MessageWriter:
    """Events of a message, in Anthropic's order. A block begins with its first text: an empty answer has none."""

    ping = named_event("ping", {"type": "ping"})

    def __init__(self, answer: MessageAnswer, generation: Generation) -> None:
        self._answer = answer
        self._generation = generation
        self._has_begun = False
        self._block: str | None = None  # kind of the block that is open
        self._num_blocks = 0
        self._text: EventTemplate | None = None  # events of the open block of text
        self._reader = answer.reader()

    def pieces(self, pieces: Sequence[Piece]) -> bytes:
        """The beginning, and text as it comes."""
        return b"".join([part for piece in pieces for part in self._piece(piece)])

    def end(self) -> bytes:
        """The reason, the account and the end."""
        reason, stop = self._answer.stop(self._generation.outputs[0], has_calls=self._reader.has_calls(0))
        delta = {"stop_reason": reason, "stop_sequence": stop}
        usage = self._generation.usage.anthropic()
        del usage["cache_creation"]  # a delta's usage has no such field
        parts = self._close()
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
        for event in self._reader.read(0, piece.text, is_last=piece.finish_reason is not None):
            parts += self._said(event) if isinstance(event, str) else self._called(event)
        return parts

    def _said(self, text: str) -> list[bytes]:
        parts = [] if self._block == "text" else self._open("text", _block(""))
        if self._text is None:
            self._text = EventTemplate(lambda text: self._delta({"type": "text_delta", "text": text}))
        return [*parts, self._text(text)]

    def _called(self, delta: ToolCallDelta) -> list[bytes]:
        parts = [] if delta.name is None else self._open("tool_use", tool_block(delta.name, {}))
        if delta.arguments:
            parts.append(self._delta({"type": "input_json_delta", "partial_json": delta.arguments}))
        return parts

    def _open(self, kind: str, block: object) -> list[bytes]:
        parts = self._close()
        self._block = kind
        return [*parts, _event("content_block_start", index=self._num_blocks, content_block=block)]

    def _close(self) -> list[bytes]:
        if self._block is None:
            return []
        self._block = self._text = None
        self._num_blocks += 1
        return [_event("content_block_stop", index=self._num_blocks - 1)]

    def _delta(self, delta: dict[str, object]) -> bytes:
        return _event("content_block_delta", index=self._num_blocks, delta=delta)


def _block(part: str | ToolCall) -> dict[str, object]:
    if isinstance(part, ToolCall):
        return tool_block(part.name, msgspec.Raw(completed_object(part.arguments).encode()))
    return {"type": "text", "text": part, "citations": None}


def _event(name: str, **fields: object) -> bytes:
    return named_event(name, {"type": name, **fields})
