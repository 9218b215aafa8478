"""What OpenAI's clients send, as strict types.

A field is in one of three classes, told in `docs/api.md` and checked by a test against the official client's own list:

    supported   has its documented effect
    ignored     parsed, without effect, and harmless without one
    refused     a value that would matter is a 400 with the field's name; null, and what means "no", is accepted

A field in none of them is a 400.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from foreword.core.sampling_params import MAX_LOGIT_BIAS_ENTRIES, SamplingParams
from foreword.core.structured_output import StructuredOutput
from foreword.server.errors import ApiError, unsupported
from foreword.server.forms import ResponseFormat, StructuredOutputs, structured_output
from foreword.server.limits import MAX_CACHE_KEY, MAX_MESSAGES, MAX_N
from foreword.server.openai.sampling import Logprobs, SamplingFields, TokenCount, check_kwargs
from foreword.server.openai.tools import ChatTools, MessageCall, ToolChoice, tool_use
from foreword.server.tenants import check_salt
from foreword.server.tool_use import ToolUse

N = Annotated[int, Meta(ge=1, le=MAX_N)]

COMPLETION_IGNORED = ("user",)
COMPLETION_REFUSED = ("suffix", "use_beam_search")
CHAT_IGNORED = (
    "metadata",
    "moderation",
    "prediction",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
CHAT_REFUSED = (
    "audio",
    "function_call",
    "functions",
    "modalities",
    "reasoning_effort",
    "use_beam_search",
    "verbosity",
    "web_search_options",
)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How an answer is streamed."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # ignored: there is nothing to hide from on this machine


class CacheBreakpoint(msgspec.Struct, forbid_unknown_fields=True):
    """The end of a prefix worth keeping."""

    mode: Literal["explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


class CacheOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be kept and for how long. `prewarm` and `comparison_response_id` are those of `/v1/responses`."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class TextPart(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Text."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class RefusalPart(msgspec.Struct, tag="refusal", tag_field="type", forbid_unknown_fields=True):
    """A refusal of the assistant's, sent back."""

    refusal: str


class ImagePart(msgspec.Struct, tag="image_url", tag_field="type"):
    """Not supported: nothing is ever fetched."""

    image_url: Any = None


class AudioPart(msgspec.Struct, tag="input_audio", tag_field="type"):
    """Not supported."""

    input_audio: Any = None


class FilePart(msgspec.Struct, tag="file", tag_field="type"):
    """Not supported."""

    file: Any = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart | RefusalPart | ImagePart | AudioPart | FilePart] | None = None
    name: str | None = None
    refusal: str | None = None
    audio: Any = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    annotations: Any = None  # sent back from an answer: ignored


class TextFields(SamplingFields, kw_only=True):
    """Fields that chat and completions have. The second group are vLLM's names."""

    n: N | None = None
    stream_options: StreamOptions | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=MAX_LOGIT_BIAS_ENTRIES)] | None = None

    min_tokens: TokenCount | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None

    user: Any = None

    def params(self, **fields: Any) -> SamplingParams:
        """The engine's parameters; fields that were not sent keep OpenAI's defaults.

        Raises:
            InvalidRequestError, ApiError: a value is out of its range.
        """
        check_salt(self.cache_salt)
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options: only allowed when stream is true", "stream_options")
        given = self.sampling("n", "min_tokens", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens")
        if self.logit_bias:
            given["logit_bias"] = _bias(self.logit_bias)
        return SamplingParams(**(given | fields))

    @property
    def includes_usage(self) -> bool:
        """True when a stream is to end with the account of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(TextFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: ChatTools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    metadata: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_key: Annotated[str, Meta(max_length=MAX_CACHE_KEY)] | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    reasoning_effort: Any = None
    use_beam_search: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        """Refuse what would matter and isn't supported.

        Raises:
            ApiError: 400 with the field's name.
        """
        harmless = {
            "function_call": ("none", "auto"),
            "functions": ([],),
            "modalities": (["text"],),
            "reasoning_effort": ("none",),
            "use_beam_search": (False,),
        }
        for name in CHAT_REFUSED:
            value = getattr(self, name)
            if value is not None and value not in harmless.get(name, ()):
                raise unsupported(name)
        check_kwargs(self.chat_template_kwargs)
        if self.prewarms and (self.stream or (self.n or 1) > 1):
            name = "prompt_cache_options.prewarm"
            raise ApiError(400, f"{name}: there is no answer to stream, or to give several of", name)
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs: only allowed when logprobs is true", "top_logprobs")

    @property
    def limit(self) -> tuple[str, int | None]:
        """Most tokens of an answer, and the field that says so."""
        if self.max_completion_tokens is None:
            return "max_tokens", self.max_tokens
        return "max_completion_tokens", self.max_completion_tokens

    @property
    def prewarms(self) -> bool:
        """True when the prompt is only to be read and stored."""
        return self.prompt_cache_options is not None and bool(self.prompt_cache_options.prewarm)

    def tool_use(self) -> ToolUse:
        """What is said of tools.

        Raises:
            ApiError, InvalidRequestError: 400.
        """
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def structured_output(self) -> StructuredOutput | None:
        """The form of the answer.

        Raises:
            InvalidRequestError: 400.
        """
        return structured_output(self.response_format, self.structured_outputs)

    def sampling_params(self) -> SamplingParams:
        """The engine's parameters."""
        name, limit = self.limit
        if limit == 0:
            raise ApiError(400, f"{name}: expected at least 1", name)
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.params(max_tokens=limit, logprobs=logprobs, structured_output=self.structured_output())


class CompletionRequest(TextFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `/v1/completions`."""

    prompt: str | list[str | int | list[int]]
    max_tokens: TokenCount | None = None
    best_of: N | None = None
    echo: bool | None = None
    logprobs: Logprobs | None = None
    suffix: str | None = None
    use_beam_search: bool | None = None


def _bias(entries: dict[str, float]) -> dict[int, float]:
    bias = {}
    for token, value in entries.items():
        if not token.isascii() or not token.isdecimal() or len(token) > 10:
            raise ApiError(400, "logit_bias: expected token ids as names", "logit_bias")
        bias[int(token)] = value
    return bias
