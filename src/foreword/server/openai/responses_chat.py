"""The conversation that a request to `/v1/responses` is about, as chat has it."""

from collections.abc import Sequence

from foreword.server.openai.responses_items import InputItem, chat_messages
from foreword.server.openai.responses_schema import ResponsesRequest
from foreword.server.openai.responses_tools import chat_tools
from foreword.server.openai.schema import ChatMessage, ChatRequest


def own_items(body: ResponsesRequest) -> list[InputItem]:
    """The items a request adds to its conversation."""
    if isinstance(body.input, str):
        return [InputItem(role="user", content=body.input)]
    return body.input or []


def chat_of(body: ResponsesRequest, own: Sequence[InputItem], known: Sequence[InputItem] = ()) -> ChatRequest:
    """The request as one to chat: instructions, the items of earlier requests, and its own.

    Raises:
        ApiError: 400, an item is malformed, isn't text, or is the result of no call.
    """
    messages = chat_messages([*known, *own], len(known))
    if body.instructions is not None:
        messages.insert(0, ChatMessage("system", body.instructions))
    return ChatRequest(
        model=body.model,
        messages=messages,
        tools=[*chat_tools(body.tools)] or None,
        chat_template_kwargs=body.chat_template_kwargs,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_options=body.prompt_cache_options,
        prompt_cache_retention=body.prompt_cache_retention,
    )
