"""Logprobs in OpenAI's two shapes."""

from collections.abc import Sequence

from foreword.llm.outputs import PositionLogprobs
from foreword.text.detokenizer import IncrementalDetokenizer
from foreword.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""What OpenAI writes for a probability of zero: JSON has no infinity."""


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    r"""A token as text; bytes that are no text by themselves as `bytes:\xe2\x80`, as OpenAI writes them."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], positions: Sequence[PositionLogprobs], top: int
) -> list[dict[str, object]]:
    """`choice.logprobs.content`: one entry a generated token, the `top` most likely ones beside it."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        entry = _chat_entry(tokenizer, token_id, position)
        ranked = sorted(position, key=lambda t: position[t].rank)[:top]
        entry["top_logprobs"] = [_chat_entry(tokenizer, t, position) for t in ranked]
        content.append(entry)
    return content


class CompletionLogprobs:
    """`choice.logprobs` of `/v1/completions`: four arrays of one length, over prompt and answer or the answer alone.

    `text_offset` counts from the beginning of the choice's `text`. A chosen token is always in its dict.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        """Args: `prompt_ids`: what stands before the first token of the arrays."""
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def arrays(
        self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None], top: int
    ) -> dict[str, list[object]]:
        """The next tokens' entries; None stands for a position without one, as the first of a prompt."""
        found: dict[str, list[object]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, position in zip(token_ids, positions, strict=True):
            found["tokens"].append(token_name(self._tokenizer, token_id))
            found["text_offset"].append(self._offset)
            self._offset += len(self._detokenizer.add(token_id))
            found["token_logprobs"].append(None if position is None else _number(position[token_id].logprob))
            found["top_logprobs"].append(None if position is None else self._named(position, token_id, top))
        return found

    def _named(self, position: PositionLogprobs, chosen: int, top: int) -> dict[str, float]:
        named: dict[str, float] = {}
        for token_id, value in position.items():
            if token_id != chosen and value.rank > top:
                continue
            name = token_name(self._tokenizer, token_id)
            # Two tokens may read alike; both values are needed to see whether the chosen one was the likeliest.
            named[name if name not in named else f"token_id:{token_id}"] = _number(value.logprob)
        return named


def _chat_entry(tokenizer: Tokenizer, token_id: int, position: PositionLogprobs) -> dict[str, object]:
    return {
        "token": token_name(tokenizer, token_id),
        "logprob": _number(position[token_id].logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _number(value: float) -> float:
    return max(value, LOWEST)
