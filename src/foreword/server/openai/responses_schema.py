"""Body of `/v1/responses`, as strict types; the classes of fields are those of `foreword.server.openai.schema`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from foreword.core.sampling_params import SamplingParams
from foreword.server.errors import ApiError, unsupported
from foreword.server.forms import ResponseTextFormat, response_text_format
from foreword.server.limits import MAX_CACHE_KEY, MAX_ITEMS, MAX_METADATA
from foreword.server.openai.responses_items import InputItem
from foreword.server.openai.responses_tools import ResponseToolChoice, ResponseTools, response_tool_use
from foreword.server.openai.sampling import Logprobs, SamplingFields, TokenCount, check_kwargs
from foreword.server.openai.schema import CacheOptions
from foreword.server.tenants import check_salt
from foreword.server.tool_use import ToolUse

RESPONSES_IGNORED = (
    "access_programs",
    "image",
    "max_tool_calls",
    "moderation",
    "safety_identifier",
    "service_tier",
    "stream_options",
    "user",
)
RESPONSES_REFUSED = ("background", "background_options", "context_management", "conversation", "prompt", "reasoning")

INPUT_TOKENS_IGNORED = ("parallel_tool_calls", "text")
INPUT_TOKENS_REFUSED = ("conversation", "personality", "reasoning")

LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
ResponseId = Annotated[str, Meta(max_length=128)]


class TextConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the text."""

    format: ResponseTextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class InputTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/responses/input_tokens`: the fields of a request for a response that its prompt depends on."""

    model: str | None = None
    input: str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    tools: ResponseTools | None = None
    tool_choice: ResponseToolChoice | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's
    cache_salt: str | None = None  # ours

    parallel_tool_calls: bool | None = None
    text: Any = None

    conversation: Any = None
    personality: Any = None
    reasoning: Any = None

    def as_request(self, default_model: str) -> "ResponsesRequest":
        """The request whose prompt is to be counted, checked.

        Raises:
            ApiError, InvalidRequestError: 400 with the field's name.
        """
        if self.personality is not None:
            raise unsupported("personality")
        left_out = {*INPUT_TOKENS_IGNORED, "personality", "model"}
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name not in left_out}
        request = ResponsesRequest(model=self.model or default_model, **given)
        request.check()
        request.tool_use()
        return request


class ResponsesRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/responses`."""

    input: str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    store: bool | None = None
    max_output_tokens: TokenCount | None = None
    top_logprobs: Logprobs | None = None
    include: list[Included] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)] | None = None
    text: TextConfig | None = None
    tools: ResponseTools | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=MAX_CACHE_KEY)] | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None

    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's

    access_programs: Any = None
    image: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    stream_options: Any = None
    user: Any = None

    background: Any = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    prompt: Any = None
    reasoning: Any = None

    def check(self) -> None:
        """Refuse what would matter and isn't supported.

        Raises:
            ApiError: 400 with the field's name.
        """
        harmless = {"background": (False,), "context_management": ([],), "reasoning": ({}, {"effort": "none"})}
        for name in RESPONSES_REFUSED:
            value = getattr(self, name)
            if value is not None and value not in harmless.get(name, ()):
                raise unsupported(name)
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise unsupported("text.verbosity")
        if not self.input and self.previous_response_id is None:
            raise ApiError(400, "input: expected text or items", "input", "missing_required_parameter")
        check_kwargs(self.chat_template_kwargs)
        self._check_logprobs()
        check_salt(self.cache_salt)

    def _check_logprobs(self) -> None:
        if self.top_logprobs is not None and not self.has_logprobs:
            raise ApiError(400, f"top_logprobs: only with {LOGPROBS} in include", "top_logprobs")
        if self.has_logprobs and self.tools and self.tool_choice != "none":
            raise ApiError(400, f"include: {LOGPROBS} can't be told of text among calls of tools", "include")

    @property
    def has_logprobs(self) -> bool:
        """True when the answer's tokens are to come with their probabilities."""
        return LOGPROBS in (self.include or ())

    @property
    def is_kept(self) -> bool:
        """True when the answer may be retrieved and continued."""
        return self.store is not False

    @property
    def prewarms(self) -> bool:
        """True when the prompt is only to be read and stored."""
        return self.prompt_cache_options is not None and bool(self.prompt_cache_options.prewarm)

    def tool_use(self) -> ToolUse:
        """What is said of tools.

        Raises:
            ApiError, InvalidRequestError: 400.
        """
        return response_tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def sampling_params(self) -> SamplingParams:
        """The engine's parameters.

        Raises:
            ApiError, InvalidRequestError: 400, a value is out of its range.
        """
        if self.max_output_tokens == 0:
            raise ApiError(400, "max_output_tokens: expected at least 1", "max_output_tokens")
        return SamplingParams(
            max_tokens=1 if self.prewarms else self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if self.has_logprobs else None,
            structured_output=None if self.text is None else response_text_format(self.text.format),
            **self.sampling(),
        )
