"""What callers may pass as a prompt, and the token ids it stands for."""

from collections.abc import Mapping, Sequence

from foreword.core.errors import InvalidRequestError
from foreword.core.types import are_token_ids
from foreword.text.tokenizer import Tokenizer

Prompt = str | Mapping[str, object]
"""Text, or `{"prompt_token_ids": [...]}`."""


def as_prompt_list(prompts: object) -> list[object]:
    """One prompt or several, as a list."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, Sequence) and not isinstance(prompts, bytes | bytearray):
        return list(prompts)
    raise InvalidRequestError("prompts", 'text, {"prompt_token_ids": [...]} or a list of them', prompts)


def prompt_token_ids(prompt: object, tokenizer: Tokenizer) -> tuple[str | None, list[int]]:
    """Text (None when ids were given) and token ids of one prompt.

    Raises:
        InvalidRequestError: not a prompt, an id outside the vocabulary, or no token at all.
    """
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, add_special_tokens=True, parse_special=False)
        text: str | None = prompt
    elif isinstance(prompt, Mapping) and set(prompt) == {"prompt_token_ids"}:
        ids, text = _checked_ids(prompt["prompt_token_ids"], tokenizer.vocab_size), None
    elif isinstance(prompt, Mapping) and set(prompt) == {"prompt"} and isinstance(prompt["prompt"], str):
        return prompt_token_ids(prompt["prompt"], tokenizer)
    else:
        raise InvalidRequestError("prompt", 'text or {"prompt_token_ids": [...]}', prompt)
    if not ids:
        raise InvalidRequestError("prompt", "at least one token", prompt)
    return text, ids


def _checked_ids(ids: object, vocab_size: int) -> list[int]:
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise InvalidRequestError("prompt_token_ids", "a list of token ids", ids)
    if are_token_ids(ids, vocab_size):
        return list(ids)
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise InvalidRequestError("prompt_token_ids", f"integers from 0 to {vocab_size - 1}", token)
    return list(ids)
