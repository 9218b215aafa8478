"""`/v1/completions`: text or token ids go on, with echo and logprobs for those who score."""

import math
import time
from collections.abc import Sequence
from itertools import chain

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foreword.core.sampling_params import SamplingParams
from foreword.llm.outputs import CompletionOutput, RequestOutput
from foreword.server.context import asker_of
from foreword.server.errors import ApiError, openai_body, unsupported
from foreword.server.forms import structured_output
from foreword.server.generation import Generation, Piece
from foreword.server.ids import new_hex
from foreword.server.limits import MAX_PROMPTS
from foreword.server.openai.caching import completion_with_cache
from foreword.server.openai.chat import DONE, PING
from foreword.server.openai.logprobs import CompletionLogprobs
from foreword.server.openai.schema import COMPLETION_REFUSED, CompletionRequest
from foreword.server.prompts import Prompt
from foreword.server.response_fields import question_of
from foreword.server.service import Service
from foreword.server.sse import EventStream, EventTemplate, collect, data_event
from foreword.server.status_routes import json_response

DEFAULT_MAX_TOKENS = 16
MAX_QUICK_IDS = 1024
"""Token ids that are checked on the loop, in less time than it takes to wake a thread for it."""


def completion_routes(service: Service) -> list[Route]:
    """The route, bound to a service."""
    decoder = msgspec.json.Decoder(CompletionRequest)

    async def complete(request: Request) -> Response:
        body = await service.bodies.read(request, decoder)
        service.check_model(body.model)
        plan = CompletionPlan(body, service.max_model_len)
        answer, asker = CompletionAnswer(service, plan), asker_of(request, plan.cache_salt)

        def encode() -> Sequence[Prompt]:
            prompts = [service.prompts.encode_prompt(prompt) for prompt in plan.prompts]
            return [completion_with_cache(service, plan.model, asker, prompt) for prompt in prompts]

        generation = await service.generate(
            encode,
            plan.params,
            asker,
            prefill_only=plan.reads_only,
            question=question_of(request, body),
            is_quick=plan.num_ids <= MAX_QUICK_IDS and service.emulation is None,
        )
        if body.stream:
            writer = CompletionWriter(answer, generation, includes_usage=body.includes_usage)
            return EventStream(generation, writer, service.limits)
        await collect(generation, request)
        return json_response(answer.whole(generation), headers=generation.account.headers())

    return [Route("/v1/completions", complete, methods=["POST"])]


class CompletionPlan:
    """A body, checked, and what follows from it.

    Raises:
        ApiError, InvalidRequestError: 400.
    """

    def __init__(self, body: CompletionRequest, max_model_len: int) -> None:
        self.model = body.model
        self.cache_salt = body.cache_salt
        if len(body.prompt) > max(MAX_PROMPTS, max_model_len) and not isinstance(body.prompt, str):
            message = f"prompt: expected at most {MAX_PROMPTS} prompts, or {max_model_len} token ids"
            raise ApiError(400, message, "prompt", "context_length_exceeded")  # before looking at each of them
        self.prompts = _prompts(body.prompt)
        self.n = body.n or 1
        self.best_of = body.best_of or self.n
        self.echo = bool(body.echo)
        self.logprobs = body.logprobs
        for name in COMPLETION_REFUSED:
            if getattr(body, name):
                raise unsupported(name)
        if self.best_of < self.n:
            raise ApiError(400, "best_of: expected at least n", "best_of")
        if self.best_of > self.n and body.stream:
            raise ApiError(400, "best_of: can't be streamed, as all answers are needed to choose", "best_of")
        if len(self.prompts) * self.best_of > MAX_PROMPTS:
            raise ApiError(400, f"prompt: at most {MAX_PROMPTS} prompts times n", "prompt")
        limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        self.reads_only = limit == 0
        if self.reads_only and not self.echo:
            raise ApiError(400, "max_tokens: 0 is only allowed with echo", "max_tokens")
        if self.reads_only and body.min_tokens:
            raise ApiError(400, "min_tokens: expected at most max_tokens", "min_tokens")
        # Choosing the best takes the answers' logprobs, asked for or not.
        wanted = self.logprobs if self.best_of == self.n else self.logprobs or 0
        self.params: SamplingParams = body.params(
            n=1 if self.reads_only else self.best_of,
            max_tokens=max(limit, 1),
            logprobs=wanted,
            prompt_logprobs=self.logprobs if self.echo else None,
            structured_output=structured_output(None, body.structured_outputs),
        )

    @property
    def num_ids(self) -> float:
        """Token ids in all; without bound where there is text."""
        return sum(math.inf if isinstance(prompt, str) else len(prompt) for prompt in self.prompts)


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    tokens = [part for part in prompt if isinstance(part, int)]
    if tokens and len(tokens) == len(prompt):
        return [tokens]
    if not 0 < len(prompt) <= MAX_PROMPTS:
        raise ApiError(400, f"prompt: expected 1 to {MAX_PROMPTS} prompts", "prompt")
    texts = [part for part in prompt if isinstance(part, str)]
    ids = [part for part in prompt if isinstance(part, list)]
    if len(texts) != len(prompt) and len(ids) != len(prompt):
        raise ApiError(400, "prompt: expected text, token ids, or a list of one of them", "prompt")
    return [*texts, *ids]


class CompletionAnswer:
    """Writes one answer's objects."""

    def __init__(self, service: Service, plan: CompletionPlan) -> None:
        self._tokenizer = service.tokenizer
        self._plan = plan
        self._head: dict[str, object] = {
            "id": f"cmpl-{new_hex(16)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": plan.model,
            "system_fingerprint": service.fingerprint,
        }

    @property
    def n(self) -> int:
        """Choices a prompt has."""
        return self._plan.n

    def whole(self, generation: Generation) -> dict[str, object]:
        """`text_completion`."""
        choices = []
        for number, output in enumerate(generation.outputs):
            for place, answer in enumerate(self._best(output)):
                choices.append(self._whole_choice(number * self._plan.n + place, output, answer))
        return {**self._head, "choices": choices, "usage": generation.usage.openai()}

    def chunk(self, choices: list[dict[str, object]], usage: dict[str, object] | None = None) -> bytes:
        """The same object with a part of the text, as an event."""
        return data_event({**self._head, "choices": choices, "usage": usage})

    def echoed(self, output: RequestOutput) -> str:
        """What an answer begins with: the prompt, if it is to be echoed."""
        if not self._plan.echo:
            return ""
        return output.prompt if output.prompt is not None else self._decode(output.prompt_token_ids)

    def logprobs_of(self, output: RequestOutput) -> CompletionLogprobs | None:
        """The writer of a choice's logprobs, if any are asked for."""
        if self._plan.logprobs is None:
            return None
        before = () if self._plan.echo else output.prompt_token_ids
        return CompletionLogprobs(self._tokenizer, before, skip_special_tokens=self._plan.params.skip_special_tokens)

    def prompt_arrays(self, output: RequestOutput, writer: CompletionLogprobs | None) -> dict[str, list[object]] | None:
        """The prompt's logprobs, if it is echoed with them."""
        if writer is None or not self._plan.echo:
            return None
        return writer.arrays(output.prompt_token_ids, output.prompt_logprobs or [], self._plan.logprobs or 0)

    def piece_arrays(self, piece: Piece, writer: CompletionLogprobs | None) -> dict[str, list[object]] | None:
        """A piece's logprobs."""
        if writer is None:
            return None
        return writer.arrays(piece.token_ids, piece.logprobs, self._plan.logprobs or 0)

    def _whole_choice(self, index: int, output: RequestOutput, answer: CompletionOutput) -> dict[str, object]:
        writer = self.logprobs_of(output)
        found = self.prompt_arrays(output, writer)
        if writer is not None and not self._plan.reads_only:
            generated = writer.arrays(answer.token_ids, answer.logprobs or [], self._plan.logprobs or 0)
            found = joined(found, generated)
        return {
            "index": index,
            "text": self.echoed(output) + answer.text,
            "logprobs": found,
            "finish_reason": answer.finish_reason,
        }

    def _best(self, output: RequestOutput) -> Sequence[CompletionOutput]:
        """The n answers with the highest logprob a token; all of them when there are no more."""
        if len(output.outputs) <= self._plan.n:
            return output.outputs
        ranked = sorted(output.outputs, key=lambda a: -(a.cumulative_logprob or 0.0) / max(1, len(a.token_ids)))
        return ranked[: self._plan.n]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._plan.params.skip_special_tokens)


class CompletionWriter:
    """Events of a completion: each choice's prompt first where it is echoed, then text as it comes."""

    ping = PING

    def __init__(self, answer: CompletionAnswer, generation: Generation, *, includes_usage: bool) -> None:
        self._answer = answer
        self._generation = generation
        self._includes_usage = includes_usage
        self._logprobs: dict[int, CompletionLogprobs | None] = {}
        self._plain: dict[int, EventTemplate] = {}  # events of a choice that have nothing but text

    def pieces(self, pieces: Sequence[Piece]) -> bytes:
        """One chunk a piece that says something."""
        return b"".join([self._piece(piece) for piece in pieces])

    def end(self) -> bytes:
        """The account, where it was asked for, and the end."""
        account = self._generation.usage.openai()
        return (self._answer.chunk([], account) if self._includes_usage else b"") + DONE

    def error(self, error: ApiError) -> bytes:
        """A data line with an error object; clients raise at it."""
        return data_event(openai_body(error))

    def _piece(self, piece: Piece) -> bytes:
        index = piece.prompt_index * self._answer.n + piece.index
        text, found = piece.text, None
        if index not in self._logprobs:
            output = self._generation.outputs[piece.prompt_index]
            writer = self._logprobs[index] = self._answer.logprobs_of(output)
            text = self._answer.echoed(output) + text
            found = self._answer.prompt_arrays(output, writer)
        if piece.token_ids:
            found = joined(found, self._answer.piece_arrays(piece, self._logprobs[index]))
        if not text and found is None and piece.finish_reason is None:
            return b""
        if found is None and piece.finish_reason is None:
            if index not in self._plain:
                self._plain[index] = EventTemplate(lambda text: self._chunk(index, text))
            return self._plain[index](text)
        return self._chunk(index, text, found, piece.finish_reason)

    def _chunk(
        self, index: int, text: str, found: dict[str, list[object]] | None = None, reason: str | None = None
    ) -> bytes:
        return self._answer.chunk([{"index": index, "text": text, "logprobs": found, "finish_reason": reason}])


def joined(
    first: dict[str, list[object]] | None, second: dict[str, list[object]] | None
) -> dict[str, list[object]] | None:
    """Two runs of arrays as one."""
    if first is None or second is None:
        return first if second is None else second
    return {name: list(chain(first[name], second[name])) for name in first}
