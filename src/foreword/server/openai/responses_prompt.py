"""The prompt of a request to `/v1/responses`: instructions, what came before, and its own items."""

from collections.abc import Callable, Sequence

import msgspec

from foreword.server.context import Asker
from foreword.server.errors import ApiError
from foreword.server.openai.caching import with_cache
from foreword.server.openai.messages import plain_messages
from foreword.server.openai.responses_answer import ResponseAnswer
from foreword.server.openai.responses_chat import chat_of, own_items
from foreword.server.openai.responses_items import InputItem, listed_items
from foreword.server.openai.responses_schema import ResponsesRequest
from foreword.server.openai.responses_store import StoredResponse, conversation
from foreword.server.openai.schema import ChatRequest
from foreword.server.prompts import Prompt
from foreword.server.service import Service


def make_prompt(
    service: Service, body: ResponsesRequest, asker: Asker, chain: Sequence[StoredResponse], answer: ResponseAnswer
) -> Prompt:
    """The prompt, with what its cache fields ask for. For `off_loop`.

    Raises:
        ApiError, InvalidRequestError: it can't be, or is longer than the context.
    """
    own = own_items(body)
    chat = _chat(service, body, asker, chain, own)
    answer.input_items = msgspec.json.encode(listed_items(own))
    return with_cache(service, chat, asker, _encoded(service, chat, asker))


def count_tokens(service: Service, body: ResponsesRequest, asker: Asker, chain: Sequence[StoredResponse]) -> int:
    """Tokens of the prompt that a request would have. For `off_loop`.

    Raises:
        ApiError, InvalidRequestError: it can't be, or is longer than the context.
    """
    return len(_encoded(service, _chat(service, body, asker, chain, own_items(body)), asker).token_ids)


def _chat(
    service: Service, body: ResponsesRequest, asker: Asker, chain: Sequence[StoredResponse], own: Sequence[InputItem]
) -> ChatRequest:
    """The conversation as chat has it, without what there is no room for if that is to be dropped."""
    chat = chat_of(body, own, conversation(chain))
    return _fitting(service, chat, asker, body.max_output_tokens) if body.truncation == "auto" else chat


def _encoded(service: Service, chat: ChatRequest, asker: Asker) -> Prompt:
    tools, kwargs = chat.tool_use().as_json(), chat.chat_template_kwargs
    messages = plain_messages(chat.messages)
    return service.prompts.encode_chat(messages, asker.namespace, tools=tools, kwargs=kwargs, param="input")


def _fitting(service: Service, chat: ChatRequest, asker: Asker, max_output_tokens: int | None) -> ChatRequest:
    """The conversation without its oldest turns, as few as leave room for an answer.

    A turn begins with a message of the user's; what opens the conversation before the first of them, and the last
    turn, always stay. Cost: a rendering for each halving of the number of turns.
    """
    limit = service.max_model_len
    room = limit - min(max_output_tokens or limit // 8, limit // 2)
    starts = [index for index, message in enumerate(chat.messages) if message.role == "user"]

    def without(num_turns: int) -> ChatRequest:
        kept = [*chat.messages[: starts[0]], *chat.messages[starts[num_turns] :]]
        return msgspec.structs.replace(chat, messages=kept)

    if len(starts) < 2:
        return chat
    return without(_first(len(starts) - 1, lambda dropped: _fits(service, without(dropped), asker, room)))


def _fits(service: Service, chat: ChatRequest, asker: Asker, room: int) -> bool:
    try:
        return len(_encoded(service, chat, asker).token_ids) <= room
    except ApiError as error:
        if error.code == "context_length_exceeded":
            return False
        raise


def _first(last: int, holds: Callable[[int], bool]) -> int:
    """The first of 0…last for which something holds, if it holds for all behind it; `last` without a look."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
