"""A prompt given as text, as token ids or as messages: what routes that don't answer have in common."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request

from foreword.server.context import Asker, asker_of, name_fields
from foreword.server.errors import ApiError
from foreword.server.openai.messages import plain_messages
from foreword.server.openai.schema import ChatMessage
from foreword.server.openai.tools import ChatTools, tools_of
from foreword.server.prompts import Prompt
from foreword.server.service import Service
from foreword.server.tenants import check_salt
from foreword.server.tool_use import ToolUse


class PromptBody(msgspec.Struct, kw_only=True):
    """Exactly one of `prompt` and `messages`."""

    model: str
    prompt: str | list[int] | None = None
    messages: list[ChatMessage] | None = None
    tools: ChatTools | None = None  # with messages
    add_generation_prompt: bool = True
    cache_salt: str | None = None  # narrows the namespace of shared prefixes

    def template_messages(self) -> list[dict[str, object]] | None:
        """The messages for the chat template; None when a prompt was given.

        Raises:
            ApiError, InvalidRequestError: 400.
        """
        check_salt(self.cache_salt)
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "expected either prompt or messages", "prompt")
        if self.messages is None and self.tools:
            raise ApiError(400, "tools: only with messages", "tools")
        return None if self.messages is None else plain_messages(self.messages)

    def template_tools(self) -> list[dict[str, object]]:
        """The tools for the chat template.

        Raises:
            ApiError, InvalidRequestError: 400.
        """
        return ToolUse(tools_of(self.tools)).as_json()


def asker_for(request: Request, body: PromptBody) -> Asker:
    """Who asks, and where prefixes are shared; errors of the request will name the field that was given."""
    given = "prompt" if body.messages is None else "messages"
    name_fields(request, prompt=given, chat_template="messages")
    return asker_of(request, body.cache_salt)


def encoder(service: Service, body: PromptBody, asker: Asker) -> Callable[[], Prompt]:
    """What makes the token ids, as a request for an answer would have them; for `Service.queued` or `generate`.

    Raises:
        ApiError, InvalidRequestError: it can't be.
    """
    service.check_model(body.model)
    messages = body.template_messages()
    if messages is None:
        return lambda: service.prompts.encode_prompt(body.prompt)
    tools, add = body.template_tools(), body.add_generation_prompt
    return lambda: service.prompts.encode_chat(messages, asker.namespace, tools=tools, add_generation_prompt=add)
