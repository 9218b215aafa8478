"""Answers of `/v1/responses`: the response, its items, and the events of a stream."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from foreword.server.forms import ResponseTextFormat
from foreword.server.openai.responses_items import InputText, OutputRefusal
from foreword.server.openai.responses_tools import ResponseToolChoice
from foreword.server.openapi.answers import Answer
from foreword.server.openapi.openai_answers import PromptTokensDetails, Reused, TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputTextAnswer(Answer, tag="output_text"):
    """Text of the model's."""

    text: str
    annotations: list[None]
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class MessageItem(Answer, tag="message"):
    """A message of an answer."""

    id: str
    role: Literal["assistant"]
    content: list[OutputTextAnswer]
    status: ItemStatus


class CallItem(Answer, tag="function_call"):
    """A call of a function."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class ListedMessage(Answer, tag="message"):
    """A message of an input."""

    id: str
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | OutputTextAnswer | OutputRefusal]
    status: ItemStatus


class ListedResult(Answer, tag="function_call_output"):
    """What a function answered."""

    id: str
    call_id: str
    output: str | list[InputText | OutputRefusal]
    status: ItemStatus


OutputItem = MessageItem | CallItem
ListedItem = ListedMessage | CallItem | ListedResult


class OutputTokensDetails(Answer):
    """Always 0: nothing is thought in secret."""

    reasoning_tokens: int


class ResponseUsage(Answer):
    """The account in the names of `/v1/responses`."""

    input_tokens: int
    input_tokens_details: PromptTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    response_cache: Reused | UnsetType = UNSET


class ResponseFailure(Answer):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Answer):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class CacheHit(Answer, tag="cache_hit"):
    """Nothing kept this request from reading all of the compared one."""


class CacheMiss(Answer, tag="cache_miss"):
    """What did."""

    reason: Literal[
        "model_changed", "prompt_cache_key_changed", "tools_changed", "text_format_changed", "input_changed"
    ]
    cache_missed_tokens: int
    comparison_reusable_tokens: int


class NothingToCompare(Answer, tag="comparison_response_not_found"):
    """The compared response is not remembered."""


class CacheOptionsAnswer(Answer):
    """The request's, with defaults filled in."""

    mode: Literal["implicit", "explicit"]
    ttl: Literal["30m", "12h"]
    comparison_response_id: str | None


class ReasoningAnswer(Answer):
    """There is none."""

    effort: None
    summary: None


class TextConfigAnswer(Answer):
    """The form of the text."""

    format: ResponseTextFormat


class ToolAnswer(Answer, tag="function"):
    """A tool of the request."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ResponseObject(Answer):
    """A response, and what it repeats of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    completed_at: int | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    prompt_cache_diagnostics: CacheHit | CacheMiss | NothingToCompare | None
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_options: CacheOptionsAnswer | None
    prompt_cache_retention: Literal["in_memory", "24h"] | None
    reasoning: ReasoningAnswer
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: TextConfigAnswer
    tool_choice: ResponseToolChoice
    tools: list[ToolAnswer]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]


class ResponseDeleted(Answer):
    """A response is forgotten."""

    id: str
    object: Literal["response"]
    deleted: Literal[True] = True


class ItemList(Answer):
    """A page of the items a response was made of."""

    object: Literal["list"]
    data: list[ListedItem]
    first_id: str
    last_id: str
    has_more: bool


class InputTokens(Answer):
    """Tokens of a prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class _Event(Answer):
    sequence_number: int


class _ResponseEvent(_Event):
    response: ResponseObject


class _ItemEvent(_Event):
    output_index: int
    item: OutputItem


class ResponseCreated(_ResponseEvent, tag="response.created"):
    """A stream has begun."""


class ResponseInProgress(_ResponseEvent, tag="response.in_progress"):
    """The answer is being made."""


class ResponseCompleted(_ResponseEvent, tag="response.completed"):
    """The whole response."""


class ResponseIncomplete(_ResponseEvent, tag="response.incomplete"):
    """The whole response, cut off."""


class ResponseFailed(_ResponseEvent, tag="response.failed"):
    """What there is of a response that failed."""


class ItemAdded(_ItemEvent, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(_ItemEvent, tag="response.output_item.done"):
    """An item, complete."""


class _PartEvent(_Event):
    item_id: str
    output_index: int
    content_index: int


class PartAdded(_PartEvent, tag="response.content_part.added"):
    """A part of a message begins."""

    part: OutputTextAnswer


class PartDone(_PartEvent, tag="response.content_part.done"):
    """A part, complete."""

    part: OutputTextAnswer


class TextDelta(_PartEvent, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[TokenLogprob]


class TextDone(_PartEvent, tag="response.output_text.done"):
    """The text of a part."""

    text: str
    logprobs: list[TokenLogprob]


class ArgumentsDelta(_Event, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Event, tag="response.function_call_arguments.done"):
    """All arguments of a call."""

    item_id: str
    output_index: int
    arguments: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ItemAdded
    | PartAdded
    | TextDelta
    | TextDone
    | PartDone
    | ArgumentsDelta
    | ArgumentsDone
    | ItemDone
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
)
