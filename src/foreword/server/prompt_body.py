"""A prompt given as text, as token ids or as messages: what routes that don't answer have in common."""

import msgspec
from starlette.requests import Request

from foreword.server.context import tenant_of
from foreword.server.errors import ApiError
from foreword.server.openai.messages import plain_messages
from foreword.server.openai.schema import ChatMessage
from foreword.server.service import Prompt, Service
from foreword.server.tenants import check_salt


class PromptBody(msgspec.Struct, kw_only=True):
    """Exactly one of `prompt` and `messages`."""

    model: str
    prompt: str | list[int] | None = None
    messages: list[ChatMessage] | None = None
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
        return None if self.messages is None else plain_messages(self.messages)


def namespace_of(request: Request, body: PromptBody) -> bytes:
    """Where the body's prefixes are shared."""
    return tenant_of(request).namespace(body.cache_salt)


async def encode(service: Service, request: Request, body: PromptBody) -> Prompt:
    """Token ids, as a request for an answer would have them; takes a place in the queue meanwhile.

    Raises:
        ApiError, InvalidRequestError, QueueFullError: it can't be, or not now.
    """
    service.check_model(body.model)
    messages, namespace = body.template_messages(), namespace_of(request, body)
    ticket = service.enter()
    try:
        if messages is None:
            return await service.off_loop(lambda: service.encode_prompt(body.prompt))
        return await service.off_loop(
            lambda: service.encode_chat(messages, namespace, add_generation_prompt=body.add_generation_prompt)
        )
    finally:
        ticket.leave()
