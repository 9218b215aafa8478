"""`/v1/chat/completions`."""

import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.core.sampling_params import SamplingParams
from foreword.llm.outputs import PositionLogprobs
from foreword.server.call_reading import CallReader, CallReading
from foreword.server.context import asker_of, name_fields
from foreword.server.errors import ApiError, openai_body
from foreword.server.generation import Generation, Piece
from foreword.server.ids import new_hex
from foreword.server.openai.caching import with_cache
from foreword.server.openai.logprobs import chat_logprobs
from foreword.server.openai.messages import plain_messages
from foreword.server.openai.schema import ChatRequest
from foreword.server.openai.tools import call_delta, call_object
from foreword.server.prompts import Prompt
from foreword.server.response_fields import question_of
from foreword.server.service import Service
from foreword.server.sse import EventStream, EventTemplate, collect, data_event
from foreword.server.status_routes import json_response
from foreword.server.tool_use import params_and_tools
from foreword.text.early_calls import ToolCallDelta
from foreword.text.tools import ToolCall

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def chat_routes(service: Service) -> list[Route]:
    """The route, bound to a service."""
    decoder = msgspec.json.Decoder(ChatRequest)

    async def chat(request: Request) -> Response:
        body = await service.bodies.read(request, decoder)
        service.check_model(body.model)
        name_fields(request, prompt="messages", chat_template="messages", max_tokens=body.limit[0])
        asker, kwargs, template = (
            asker_of(request, body.cache_salt),
            body.chat_template_kwargs,
            service.prompts.chat_template,
        )
        params, use, calls = await service.digest(request, lambda: params_and_tools(body, template))

        def encode() -> Sequence[Prompt]:
            messages, tools = plain_messages(body.messages), use.as_json()
            prompt = service.prompts.encode_chat(messages, asker.namespace, tools=tools, kwargs=kwargs)
            return [with_cache(service, body, asker, prompt)]

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
        answer = ChatAnswer(service, body.model, params, calls)
        if body.stream:
            writer = ChatWriter(answer, params.n, includes_usage=body.includes_usage, account_of=generation)
            return EventStream(generation, writer, service.limits)
        await collect(generation, request)
        return json_response(answer.whole(generation), headers=generation.account.headers())

    return [Route("/v1/chat/completions", chat, methods=["POST"])]


class ChatAnswer:
    """Writes one answer's objects; id, time and model are the same in all of them."""

    def __init__(self, service: Service, model: str, params: SamplingParams, calls: CallReading | None = None) -> None:
        self._tokenizer = service.tokenizer
        self._params = params
        self._calls = calls
        self._head = {"id": f"chatcmpl-{new_hex(16)}", "created": int(time.time()), "model": model}
        self._fingerprint = service.fingerprint

    def reader(self) -> CallReader:
        """For the stream."""
        return CallReader(self._calls, self._params.n)

    def whole(self, generation: Generation) -> dict[str, object]:
        """`chat.completion`."""
        choices = []
        for answer in generation.outputs[0].outputs:
            message = self._message(answer.text)
            choices.append(
                {
                    "index": answer.index,
                    "message": message,
                    "logprobs": self._logprobs(answer.token_ids, answer.logprobs or []),
                    "finish_reason": finish_reason(answer.finish_reason, has_calls="tool_calls" in message),
                }
            )
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": generation.usage.openai(),
            "system_fingerprint": self._fingerprint,
        }

    def _message(self, text: str) -> dict[str, object]:
        if self._calls is None:
            return {"role": "assistant", "content": text, "refusal": None}
        parts = self._calls.parse(text)
        made = [call_object(part) for part in parts if isinstance(part, ToolCall)]
        said = "".join(part for part in parts if isinstance(part, str))
        message: dict[str, object] = {"role": "assistant", "content": said, "refusal": None}
        return message | {"content": said or None, "tool_calls": made} if made else message

    def chunk(self, choices: list[dict[str, object]], usage: dict[str, object] | None = None) -> bytes:
        """`chat.completion.chunk` as an event."""
        value = {
            **self._head,
            "object": "chat.completion.chunk",
            "choices": choices,
            "usage": usage,
            "system_fingerprint": self._fingerprint,
        }
        return data_event(value)

    def choice(self, index: int, delta: dict[str, object], piece: Piece | None = None) -> dict[str, object]:
        """A chunk's choice, with the piece's logprobs."""
        found = None if piece is None or not piece.logprobs else self._logprobs(piece.token_ids, piece.logprobs)
        return {"index": index, "delta": delta, "logprobs": found, "finish_reason": None}

    def _logprobs(self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs]) -> dict[str, object] | None:
        if self._params.logprobs is None:
            return None
        shown = [
            (token, position)
            for token, position in zip(token_ids, positions, strict=True)
            if not (self._params.skip_special_tokens and self._tokenizer.is_special(token))
        ]
        ids, kept = [token for token, _ in shown], [position for _, position in shown]
        return {"content": chat_logprobs(self._tokenizer, ids, kept, self._params.logprobs), "refusal": None}


class ChatWriter:
    """Events of a chat answer: a role first, text as it comes, an empty delta with the reason of the end."""

    ping = PING

    def __init__(self, answer: ChatAnswer, n: int, *, includes_usage: bool, account_of: Generation) -> None:
        self._answer = answer
        self._includes_usage = includes_usage
        self._generation = account_of
        self._silent = set(range(n))
        self._reader = answer.reader()
        self._plain: dict[int, EventTemplate] = {}  # events of a choice that have nothing but text

    def pieces(self, pieces: Sequence[Piece]) -> bytes:
        """One chunk a piece, and what belongs before and after it."""
        return b"".join([part for piece in pieces for part in self._piece(piece)])

    def end(self) -> bytes:
        """The account, where it was asked for, and the end."""
        usage = self._generation.usage.openai()
        return (self._answer.chunk([], usage) if self._includes_usage else b"") + DONE

    def error(self, error: ApiError) -> bytes:
        """A data line with an error object; clients raise at it."""
        return data_event(openai_body(error))

    def _piece(self, piece: Piece) -> list[bytes]:
        answer, parts = self._answer, []
        if piece.index in self._silent:
            self._silent.discard(piece.index)
            role: dict[str, object] = {"role": "assistant", "content": "", "refusal": None}
            parts.append(answer.chunk([answer.choice(piece.index, role)]))
        for event in self._events(piece):
            if isinstance(event, str) and not piece.logprobs:
                parts.append(self._text(piece.index, event))
                continue
            delta: dict[str, object] = (
                {"content": event} if isinstance(event, str) else {"tool_calls": [call_delta(event)]}
            )
            parts.append(answer.chunk([answer.choice(piece.index, delta, piece)]))
            if piece.logprobs:
                piece = replace(piece, logprobs=[])  # told once
        if piece.finish_reason is not None:
            reason = finish_reason(piece.finish_reason, has_calls=self._reader.has_calls(piece.index))
            parts.append(answer.chunk([{**answer.choice(piece.index, {}), "finish_reason": reason}]))
        return parts

    def _events(self, piece: Piece) -> Sequence[str | ToolCallDelta]:
        events = self._reader.read(piece.index, piece.text, is_last=piece.finish_reason is not None)
        return events or ([""] if piece.token_ids and piece.logprobs else [])

    def _text(self, index: int, text: str) -> bytes:
        if index not in self._plain:
            answer = self._answer
            self._plain[index] = EventTemplate(lambda text: answer.chunk([answer.choice(index, {"content": text})]))
        return self._plain[index](text)


def finish_reason(reason: str | None, *, has_calls: bool) -> str | None:
    """Why an answer ended: an end of its own behind calls means that it waits for their results."""
    return "tool_calls" if has_calls and reason == "stop" else reason
