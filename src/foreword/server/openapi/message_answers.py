"""Answers of Anthropic's routes, and the events of a streamed one."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from foreword.server.openapi.answers import Answer, AnthropicError
from foreword.server.openapi.openai_answers import Reused

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class SaidBlock(Answer, tag="text"):
    """Text of the model's."""

    text: str
    citations: None


class CalledBlock(Answer, tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = SaidBlock | CalledBlock


class CacheCreation(Answer):
    """What is written, by how long it is kept."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class DeltaUsage(Answer):
    """The account, as it comes with the end of a stream."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    response_cache: Reused | UnsetType = UNSET


class MessageUsage(DeltaUsage, kw_only=True):
    """The account: `input_tokens` is what is neither read nor written."""

    cache_creation: CacheCreation
    service_tier: Literal["standard"]


class MissReason(Answer):
    """What keeps a request from reading all of an earlier one."""

    type: Literal[
        "model_changed",
        "tools_changed",
        "system_changed",
        "unavailable",
        "messages_changed",
        "previous_message_not_found",
    ]
    cache_missed_input_tokens: int | UnsetType = UNSET
    token_position: int | UnsetType = UNSET


class DiagnosticsAnswer(Answer):
    """The comparison that was asked for."""

    cache_miss_reason: MissReason


class AnthropicMessage(Answer, tag="message"):
    """An answer of `/v1/messages`; the first event of a stream has it without content and end."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    diagnostics: DiagnosticsAnswer | UnsetType | None = UNSET


class TokenCount(Answer):
    """Tokens of a prompt."""

    input_tokens: int


class MessageStart(Answer, tag="message_start"):
    """A stream has begun."""

    message: AnthropicMessage


class BlockStart(Answer, tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: AnswerBlock


class SaidDelta(Answer, tag="text_delta"):
    """More text."""

    text: str


class InputDelta(Answer, tag="input_json_delta"):
    """More of a call's input, as JSON."""

    partial_json: str


class BlockDelta(Answer, tag="content_block_delta"):
    """A part of a block."""

    index: int
    delta: SaidDelta | InputDelta


class BlockStop(Answer, tag="content_block_stop"):
    """A block is complete."""

    index: int


class StopDelta(Answer):
    """How a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Answer, tag="message_delta"):
    """How the message ended, and the account."""

    delta: StopDelta
    usage: DeltaUsage


class MessageStop(Answer, tag="message_stop"):
    """The end."""


class Ping(Answer, tag="ping"):
    """There is nothing to say yet."""


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | AnthropicError
