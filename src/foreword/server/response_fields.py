"""Which fields of a request decide its answer. The response cache's key holds those; each other one has its reason.

A field in neither list counts as one that decides, so that forgetting one costs a hit and never a wrong answer; a
test fails until it is in a list. What lies below a field (messages, their parts) counts with the whole of it.
"""

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from starlette.requests import Request

from foreword.server.anthropic.schema import MessagesRequest
from foreword.server.openai.responses_schema import ResponsesRequest
from foreword.server.openai.schema import ChatRequest, CompletionRequest
from foreword.server.response_cache import Directives, parse_directives

_SENT = "says how the answer is sent, not what it is"
_TOLD = "is told to the server for its own use and has no effect"

_SAMPLING = frozenset(
    {
        *("model", "n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop"),
        *("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"),
        *("include_stop_str_in_output", "skip_special_tokens", "cache_salt", "structured_outputs"),
    }
)
_HOW_SENT = {"stream": _SENT, "stream_options": _SENT, "user": _TOLD}

SEMANTIC: Mapping[type[msgspec.Struct], frozenset[str]] = {
    ChatRequest: _SAMPLING
    | {
        *("messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "chat_template_kwargs"),
        *("audio", "function_call", "functions", "modalities", "reasoning_effort", "response_format", "tool_choice"),
        *("tools", "parallel_tool_calls", "verbosity", "web_search_options", "moderation", "use_beam_search"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    },
    CompletionRequest: _SAMPLING | {"prompt", "max_tokens", "best_of", "echo", "logprobs", "suffix", "use_beam_search"},
    ResponsesRequest: frozenset(
        {
            *("model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "include"),
            *("text", "tools", "tool_choice", "parallel_tool_calls", "truncation", "seed", "stop", "top_k", "min_p"),
            *("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "chat_template_kwargs"),
            *("cache_salt", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
            *("background", "background_options", "context_management", "conversation", "prompt", "reasoning"),
            *("moderation",),
        }
    ),
    MessagesRequest: frozenset(
        {
            *("model", "messages", "system", "cache_control", "cache_salt", "output_config", "speed", "thinking"),
            *("tool_choice", "tools", "workspace_id", "max_tokens", "stop_sequences", "temperature", "top_k", "top_p"),
            *("seed", "container", "diagnostics"),
        }
    ),
}
"""By body: fields whose value may change the answer, or what is told with it."""

NOT_SEMANTIC: Mapping[type[msgspec.Struct], Mapping[str, str]] = {
    ChatRequest: {
        **_HOW_SENT,
        "metadata": _TOLD,
        "prediction": "is a hint for speed",
        "safety_identifier": _TOLD,
        "service_tier": _TOLD,
        "store": _TOLD,
    },
    CompletionRequest: _HOW_SENT,
    ResponsesRequest: {
        "stream": _SENT,
        "stream_options": _SENT,
        "store": "says what is kept of the answer, not what it is",
        "previous_response_id": "decides by the prompt alone, whose token ids are in the key",
        "metadata": "comes back from the request itself, not from what is stored",
        "access_programs": _TOLD,
        "image": "is about images, of which there are none",
        "max_tool_calls": "is about tools that a server runs, of which there are none",
        "safety_identifier": _TOLD,
        "service_tier": _TOLD,
        "user": _TOLD,
    },
    MessagesRequest: {
        "stream": _SENT,
        "inference_geo": _TOLD,
        "metadata": _TOLD,
        "service_tier": _TOLD,
        "user_profile_id": _TOLD,
    },
}
"""By body: fields that don't, and why."""


def body_digest(body: msgspec.Struct) -> bytes:
    """A hash of everything in a body that decides its answer. Cost: O(body); not for the event loop.

    The body's type is part of it, and every value is framed by its encoding, so no two bodies read alike by accident.
    """
    kind = type(body)
    left_out = NOT_SEMANTIC.get(kind, {})
    fields = [(name, getattr(body, name)) for name in kind.__struct_fields__ if name not in left_out]
    return hashlib.sha256(msgspec.msgpack.encode((kind.__name__, fields))).digest()


class BodyQuestion(Struct, frozen=True):
    """A request's body as a question that may have been answered before."""

    body: msgspec.Struct
    directives: Directives

    def digest(self) -> bytes:
        """A hash of everything in it that decides its answer."""
        return body_digest(self.body)


def question_of(request: Request, body: msgspec.Struct) -> BodyQuestion:
    """The question a request asks; its `Cache-Control` says what the client wants of the cache."""
    return BodyQuestion(body, parse_directives(request.headers.get("cache-control", "")))
