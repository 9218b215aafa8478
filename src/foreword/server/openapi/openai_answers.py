"""Answers of OpenAI's routes but for `/v1/responses`, and of those that count tokens as OpenAI does."""

from typing import Literal

from msgspec import UNSET, UnsetType

from foreword.server.openapi.answers import Answer

FinishReason = Literal["stop", "length", "tool_calls"]
Reused = Literal["hit", "shared"]


class PromptTokensDetails(Answer):
    """Read from the cache, and newly written to it."""

    cached_tokens: int
    cache_write_tokens: int


class CompletionTokensDetails(Answer):
    """Always 0: nothing is thought in secret."""

    reasoning_tokens: int


class UsageAnswer(Answer):
    """The account; `response_cache` where the answer was not computed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    response_cache: Reused | UnsetType = UNSET


class PromptUsage(Answer):
    """The account where nothing is generated."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CalledFunctionAnswer(Answer):
    """A function's name, and its arguments as JSON."""

    name: str
    arguments: str


class CallAnswer(Answer, tag="function"):
    """A call of a tool."""

    id: str
    function: CalledFunctionAnswer


class MessageAnswer(Answer):
    """What the model said, and whom it called."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[CallAnswer] | UnsetType = UNSET


class TopLogprob(Answer):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The chosen token, and the likeliest beside it."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """One entry a token."""

    content: list[TokenLogprob]
    refusal: None


class ChatChoice(Answer):
    """One answer."""

    index: int
    message: MessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Answer):
    """An answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    system_fingerprint: str


class CalledFunctionDelta(Answer):
    """A name first, arguments after."""

    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(Answer):
    """A part of a call; id and type come with its first."""

    index: int
    function: CalledFunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Answer):
    """What is new of an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChatChunkChoice(Answer):
    """A part of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(Answer):
    """An event of a streamed chat answer; the account comes with the last, where it is asked for."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageAnswer | None
    system_fingerprint: str


class TextLogprobs(Answer):
    """Four arrays of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answer):
    """One answer, or a part of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class TextCompletion(Answer):
    """An answer of `/v1/completions`, or an event of one that is streamed."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: UsageAnswer | None


class EmbeddingAnswer(Answer):
    """A vector, as numbers or as base64 of f32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Answer):
    """Vectors in the order of the texts."""

    object: Literal["list"]
    data: list[EmbeddingAnswer]
    model: str
    usage: PromptUsage


class RankedText(Answer):
    """A document that was sent."""

    text: str


class RankedDocument(Answer):
    """A document's place and how well it answers."""

    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class ApiVersion(Answer):
    """Cohere's."""

    version: str


class BilledUnits(Answer):
    """Cohere's; nothing is billed."""

    search_units: int


class CohereTokens(Answer):
    """The account in Cohere's names."""

    input_tokens: int
    output_tokens: int


class RerankMeta(Answer):
    """Cohere's account, and which documents were cut."""

    api_version: ApiVersion
    billed_units: BilledUnits
    tokens: CohereTokens
    cached_tokens: int
    warnings: list[str]


class RerankAnswer(Answer):
    """Documents, best first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: PromptUsage
    meta: RerankMeta


class PairScore(Answer):
    """How well a document answers its query."""

    index: int
    object: Literal["score"]
    score: float


class ScoreAnswer(Answer):
    """Scores in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: PromptUsage
    warnings: list[str]
