"""One account of tokens, mapped to each dialect.

T total, R read from cache, W newly written to it, U the rest: T = R + W + U, in every answer. An answer that the
response cache gave has R = T and says so: nothing of it was computed.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from foreword.core.sequence import Usage

Outcome = Literal["hit", "shared", "miss", "bypass"]
OUTCOMES: tuple[Outcome, ...] = ("hit", "shared", "miss", "bypass")
RESPONSE_CACHE_HEADER = "foreword-response-cache"


class Reuse(Struct):
    """What the response cache did for an answer; `outcome` is None where there is no such cache.

    hit      stored, and given again
    shared   computed once for several requests at the same time, of which this was not the first
    miss     computed
    bypass   computed, as the request may have another answer every time

    """

    outcome: Outcome | None = None

    @property
    def is_reused(self) -> bool:
        """True when nothing was computed for this answer."""
        return self.outcome in ("hit", "shared")


class Account(Struct, frozen=True):
    """Prompt tokens, of these read from cache and newly written to it, and generated tokens."""

    prompt: int = 0
    read: int = 0
    written: int = 0
    completion: int = 0
    outcome: Outcome | None = None  # what the response cache did
    written_1h: int = 0  # of what was written, to stay an hour from each use

    def __add__(self, other: "Account") -> "Account":
        return Account(
            self.prompt + other.prompt,
            self.read + other.read,
            self.written + other.written,
            self.completion + other.completion,
            self.outcome or other.outcome,
            self.written_1h + other.written_1h,
        )

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
            **self._mark(),
        }

    def responses(self) -> dict[str, object]:
        """Inclusive, in the names of `/v1/responses`."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.read, "cache_write_tokens": self.written},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt + self.completion,
            **self._mark(),
        }

    def prompt_only(self) -> dict[str, object]:
        """OpenAI's names where nothing is generated."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt,
            "prompt_tokens_details": {"cached_tokens": self.read, "cache_write_tokens": self.written},
        }

    def anthropic(self) -> dict[str, object]:
        """Exclusive: `input_tokens` is what is left beside reads and writes."""
        return {
            "input_tokens": self.uncached,
            "cache_creation_input_tokens": self.written,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written - self.written_1h,
                "ephemeral_1h_input_tokens": self.written_1h,
            },
            "output_tokens": self.completion,
            **self._mark(),
        }

    def marks(self) -> dict[str, str]:
        """The header that says what the response cache did, on a server that has one."""
        return {} if self.outcome is None else {RESPONSE_CACHE_HEADER: self.outcome}

    def headers(self) -> dict[str, str]:
        """The same for people with curl."""
        return {
            **self.marks(),
            "foreword-prompt-tokens": str(self.prompt),
            "foreword-cached-tokens": str(self.read),
            "foreword-written-tokens": str(self.written),
        }

    def _mark(self) -> dict[str, object]:
        return {"response_cache": self.outcome} if Reuse(self.outcome).is_reused else {}


def account(usages: Iterable[Usage], reuse: Reuse | None = None) -> Account:
    """The account of a few prompts together.

    What was written again after a preemption counts once: no more is written than was computed.
    """
    prompt = read = written = completion = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        read += usage.cached_tokens
        written += min(usage.written_tokens, usage.prompt_tokens - usage.cached_tokens)
        completion += usage.completion_tokens
    outcome = None if reuse is None else reuse.outcome
    if reuse is not None and reuse.is_reused:
        return Account(prompt, prompt, 0, completion, outcome)
    return Account(prompt, read, written, completion, outcome)
