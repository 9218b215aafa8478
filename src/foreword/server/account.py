"""One account of tokens, mapped to each dialect.

T total, R read from cache, W newly written to it, U the rest: T = R + W + U, in every answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from foreword.core.sequence import Usage


@dataclass(frozen=True, slots=True)
class Account:
    """Prompt tokens, of these read from cache and newly written to it, and generated tokens."""

    prompt: int = 0
    read: int = 0
    written: int = 0
    completion: int = 0

    @property
    def uncached(self) -> int:
        """Prompt tokens neither read nor written: computed, but findable already or not kept."""
        return self.prompt - self.read - self.written

    def openai(self) -> dict[str, object]:
        """Inclusive: `prompt_tokens` is the total."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.read, "cache_write_tokens": self.written},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }

    def anthropic(self) -> dict[str, object]:
        """Exclusive: `input_tokens` is what is left beside reads and writes."""
        return {
            "input_tokens": self.uncached,
            "cache_creation_input_tokens": self.written,
            "cache_read_input_tokens": self.read,
            "cache_creation": {"ephemeral_5m_input_tokens": self.written, "ephemeral_1h_input_tokens": 0},
            "output_tokens": self.completion,
        }

    def headers(self) -> dict[str, str]:
        """The same for people with curl."""
        return {
            "foreword-prompt-tokens": str(self.prompt),
            "foreword-cached-tokens": str(self.read),
            "foreword-written-tokens": str(self.written),
        }


def account(usages: Iterable[Usage]) -> Account:
    """The account of a few prompts together.

    What was written again after a preemption counts once: no more is written than was computed.
    """
    prompt = read = written = completion = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        read += usage.cached_tokens
        written += min(usage.written_tokens, usage.prompt_tokens - usage.cached_tokens)
        completion += usage.completion_tokens
    return Account(prompt, read, written, completion)
