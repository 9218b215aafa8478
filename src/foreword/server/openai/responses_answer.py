"""An answer of `/v1/responses`: its object, whole and as events, and what is kept of it."""

import time
from collections.abc import Sequence

import msgspec

from foreword.core.sampling_params import SamplingParams
from foreword.server.call_reading import CallReader, CallReading
from foreword.server.errors import ApiError
from foreword.server.generation import Generation, Piece
from foreword.server.openai.logprobs import chat_logprobs
from foreword.server.openai.responses_items import new_id
from foreword.server.openai.responses_output import Event, Logprobs, OutputItems
from foreword.server.openai.responses_schema import ResponsesRequest
from foreword.server.openai.responses_store import ResponseStore, StoredResponse
from foreword.server.openai.responses_tools import told_tools
from foreword.server.service import Service
from foreword.server.sse import named_event

_FAILURES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseAnswer:
    """Makes one answer's objects; what they tell of the request is the same in all of them.

    `input_items`, JSON of the request's own items, and `diagnostics` are set when the prompt is made.
    """

    def __init__(
        self, service: Service, body: ResponsesRequest, params: SamplingParams, calls: CallReading | None
    ) -> None:
        self.id = new_id("resp")
        self.input_items = b"[]"
        self.diagnostics: dict[str, object] | None = None
        self.output = OutputItems()
        self._body, self._params, self._calls = body, params, calls
        self._tokenizer = service.tokenizer
        self._created_at = int(time.time())
        self._told = _told(body, params, is_kept=body.is_kept and service.limits.response_store_bytes > 0)

    @property
    def warms(self) -> bool:
        """True when there is nothing to say."""
        return self._body.prewarms

    def reader(self) -> CallReader:
        """What finds calls in the pieces of the answer."""
        return CallReader(self._calls)

    def whole(self, generation: Generation) -> dict[str, object]:
        """The response, complete."""
        answer = generation.outputs[0].outputs[0]
        if not self.warms:
            logprobs = self.logprobs(answer.token_ids, answer.logprobs or [])
            for event in self.reader().read(0, answer.text, is_last=True):
                list(self.output.add(event, logprobs))
        return self.end(generation)[1]

    def end(self, generation: Generation) -> tuple[list[Event], dict[str, object]]:
        """The events that close the items, and the response."""
        is_cut = generation.outputs[0].outputs[0].finish_reason == "length" and not self.warms
        events = [] if self.warms else list(self.output.close(is_cut=is_cut))
        return events, self.response("incomplete" if is_cut else "completed", generation.usage.responses())

    def response(
        self, status: str, usage: dict[str, object] | None = None, error: dict[str, object] | None = None
    ) -> dict[str, object]:
        """The response object as it stands."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self.output.items,
            "prompt_cache_diagnostics": None if usage is None else self.diagnostics,
            "usage": usage,
            **self._told,
        }

    def logprobs(self, token_ids: Sequence[int], positions: Sequence[object]) -> Logprobs:
        """Probabilities of generated tokens, as they are told with text; nothing where they weren't asked for."""
        if self._params.logprobs is None:
            return []
        shown = [
            (token, position)
            for token, position in zip(token_ids, positions, strict=True)
            if not self._tokenizer.is_special(token)
        ]
        ids, kept = [token for token, _ in shown], [position for _, position in shown]
        return chat_logprobs(self._tokenizer, ids, kept, self._params.logprobs)  # type: ignore[arg-type]

    def keep(self, store: ResponseStore, tenant: bytes, response: dict[str, object]) -> None:
        """Store the finished response, if that is wanted."""
        if self._told["store"]:
            encoded = msgspec.json.encode(response)
            stored = StoredResponse(self._body.previous_response_id, self.input_items, encoded)
            store.keep(tenant, self.id, stored)


class ResponseWriter:
    """Events of a response, numbered from 0: created, in progress, its items, and its end."""

    ping = b": ping\n\n"

    def __init__(self, answer: ResponseAnswer, generation: Generation, store: ResponseStore, tenant: bytes) -> None:
        self._answer, self._generation = answer, generation
        self._store, self._tenant = store, tenant
        self._reader = answer.reader()
        self._number = 0

    def pieces(self, pieces: Sequence[Piece]) -> bytes:
        """The beginning, and items as they come."""
        return self._begun() + b"".join([self._piece(piece) for piece in pieces])

    def end(self) -> bytes:
        """What is still open, and the whole response, which can be continued from now on."""
        events, response = self._answer.end(self._generation)
        self._answer.keep(self._store, self._tenant, response)
        return self._begun() + self._events([*events, (f"response.{response['status']}", {"response": response})])

    def error(self, error: ApiError) -> bytes:
        """The response that failed."""
        told: dict[str, object] = {"code": _FAILURES.get(error.status, "server_error"), "message": error.message}
        usage = self._generation.usage.responses()
        failed = self._answer.response("failed", usage, told)
        return self._begun() + self._events([("response.failed", {"response": failed})])

    def _begun(self) -> bytes:
        if self._number:
            return b""
        response = {**self._answer.response("in_progress"), "output": []}
        return self._events([(f"response.{name}", {"response": response}) for name in ("created", "in_progress")])

    def _piece(self, piece: Piece) -> bytes:
        answer = self._answer
        if answer.warms:
            return b""
        logprobs = answer.logprobs(piece.token_ids, piece.logprobs) if piece.logprobs else []
        found = self._reader.read(0, piece.text, is_last=piece.finish_reason is not None)
        events: list[Event] = []
        for event in found or ([""] if logprobs else []):
            events += answer.output.add(event, logprobs)
            logprobs = []  # told once
        return self._events(events)

    def _events(self, events: Sequence[Event]) -> bytes:
        written = []
        for kind, fields in events:
            written.append(named_event(kind, {"type": kind, "sequence_number": self._number, **fields}))
            self._number += 1
        return b"".join(written)


def _told(body: ResponsesRequest, params: SamplingParams, *, is_kept: bool) -> dict[str, object]:
    """What every object of an answer repeats of its request, with defaults filled in."""
    options, text = body.prompt_cache_options, body.text
    text_format = None if text is None else text.format
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": body.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_options": None
        if options is None
        else {
            "mode": options.mode or "implicit",
            "ttl": options.ttl or "30m",
            "comparison_response_id": options.comparison_response_id,
        },
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": is_kept,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"} if text_format is None else text_format},
        "tool_choice": body.tool_choice or "auto",
        "tools": told_tools(body.tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
    }
