"""Requests as clients send them, OpenAI's or Anthropic's, turned into one prompt: messages, text or token ids."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from foreword.cli.text_input import parse_json
from foreword.core.errors import ForewordError, InvalidRequestError

_BODY = re.compile(r'\s*\{\s*(?:["}]|$)')  # what begins like a request is none but a request


class AskedPrompt(Struct, frozen=True, kw_only=True):
    """Exactly one of `messages` and `prompt`."""

    model: str | None = None
    messages: tuple[dict[str, object], ...] | None = None
    prompt: str | list[int] | None = None
    tools: tuple[dict[str, object], ...] = ()
    cache_salt: str | None = None

    def explain_body(self, model: str) -> dict[str, object]:
        """Body of `/cache/explain`."""
        body: dict[str, object] = {"model": self.model or model}
        if self.messages is None:
            body["prompt"] = self.prompt
        else:
            body["messages"] = list(self.messages)
        if self.tools:
            body["tools"] = list(self.tools)
        if self.cache_salt is not None:
            body["cache_salt"] = self.cache_salt
        return body


def read_request(text: str, where: str) -> AskedPrompt:
    """A request's JSON; text that is no JSON object is a plain prompt.

    Raises:
        ForewordError: a JSON object that is no request, or what begins like one and can't be read.
    """
    found = parse_json(text, where) if _BODY.match(text) else None
    if isinstance(found, dict):
        return from_body(found, where)
    if not text:
        raise ForewordError(f"{where}: nothing in it")
    return AskedPrompt(prompt=text)


def from_body(found: Mapping[str, object], where: str) -> AskedPrompt:
    """A request's body, or a line of a batch file that has it as `body`.

    Raises:
        ForewordError: it has neither messages nor a prompt, or they are malformed.
    """
    inner = found.get("body")
    if isinstance(inner, dict) and not {"messages", "prompt", "input"} & set(found):
        found = inner
    model, salt = found.get("model"), found.get("cache_salt")
    named = model if isinstance(model, str) else None
    narrowed = salt if isinstance(salt, str) else None
    if "messages" not in found and "prompt" not in found and "input" in found:
        turns, functions = _responses_parts(found, where)
        return AskedPrompt(model=named, messages=turns, tools=functions, cache_salt=narrowed)
    if "messages" not in found:
        return AskedPrompt(model=named, prompt=_prompt(found.get("prompt"), where), cache_salt=narrowed)
    listed = found["messages"]
    if not isinstance(listed, list) or not listed:
        raise InvalidRequestError(f"{where}: messages", "a list of messages", listed)
    messages = [_message(message, f"{where}: messages[{i}]") for i, message in enumerate(listed)]
    system = found.get("system")  # Anthropic's
    if system:
        messages.insert(0, {"role": "system", "content": _text(system, f"{where}: system")})
    tools = found.get("tools") or ()
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise InvalidRequestError(f"{where}: tools", "a list of tools", tools)
    described = tuple(_tool(tool, f"{where}: tools[{i}]") for i, tool in enumerate(tools))
    return AskedPrompt(model=named, messages=tuple(messages), tools=described, cache_salt=narrowed)


def _responses_parts(
    found: Mapping[str, object], where: str
) -> tuple[tuple[dict[str, object], ...], tuple[dict[str, object], ...]]:
    """Messages and tools of a body of `/v1/responses`, as the server makes them."""
    import msgspec

    from foreword.server.errors import ApiError
    from foreword.server.openai.messages import plain_messages
    from foreword.server.openai.responses_chat import chat_of, own_items
    from foreword.server.openai.responses_schema import InputTokensRequest

    if found.get("previous_response_id") is not None:
        raise ForewordError(
            f"{where}: previous_response_id: what came before is not in this body; give the whole input"
        )
    given = {name: found[name] for name in ("input", "instructions", "tools") if name in found}
    try:
        body = msgspec.convert(given, InputTokensRequest).as_request("")
        chat = chat_of(body, own_items(body))
        return tuple(plain_messages(chat.messages)), tuple(chat.tool_use().as_json())
    except (msgspec.ValidationError, InvalidRequestError) as error:
        raise ForewordError(f"{where}: {error}") from None
    except ApiError as error:
        raise ForewordError(f"{where}: {error.message}") from None


def _prompt(prompt: object, where: str) -> str | list[int]:
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    raise InvalidRequestError(f"{where}: prompt", "messages, or a prompt of text or token ids", prompt)


def _message(message: object, where: str) -> dict[str, object]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidRequestError(where, 'an object with "role" and "content"', message)
    kept = {name: value for name, value in message.items() if name in ("role", "tool_calls", "tool_call_id", "name")}
    content = message.get("content")
    role = "system" if message["role"] == "developer" else message["role"]  # as the server reads it
    return {**kept, "role": role, "content": content if content is None else _text(content, f"{where}.content")}


def _text(content: object, where: str) -> str:
    """Text, or text blocks joined as the server joins them."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = []
    for block in blocks:
        text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequestError(where, "text, or blocks of text", block)
        texts.append(text)
    return "\n".join(texts)


def _tool(tool: object, where: str) -> dict[str, object]:
    """A tool as OpenAI writes it; Anthropic's has its schema as `input_schema`."""
    if not isinstance(tool, dict):
        raise InvalidRequestError(where, "an object", tool)
    if "input_schema" not in tool:
        return tool
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    if "description" in tool:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}
