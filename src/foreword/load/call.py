"""One request of a load, and what became of it."""

from array import array

import msgspec
from msgspec import Struct, field


class Call(Struct, frozen=True, kw_only=True):
    """A POST, ready to be sent.

    `leaves_after` pieces of the answer, the client resets the connection; `is_garbage` calls are meant to be refused.
    """

    path: str
    body: bytes
    leaves_after: int | None = None
    is_garbage: bool = False


class Session(Struct, frozen=True):
    """Calls of which each waits for the one before: a conversation, or a single request.

    `start_s` is counted from the beginning of the load, `offsets_s` from the session's; both say when a call is due
    at the earliest.
    """

    calls: tuple[Call, ...]
    start_s: float = 0.0
    offsets_s: tuple[float, ...] = ()

    def due_s(self, index: int) -> float:
        """When a call is due, from the session's start."""
        return self.offsets_s[index] if self.offsets_s else 0.0


class Record(Struct, kw_only=True):
    """What became of a call. Times are seconds on one clock; `due_s` is when it should have been sent.

    `outcome` is "ok", "left" (by us, as planned), "refused" (garbage, answered with a 4xx), or the kind of an error.
    """

    due_s: float
    sent_s: float = 0.0
    first_s: float | None = None  # the first piece of the answer
    last_s: float = 0.0  # the last, or the finish reason that came without one
    end_s: float = 0.0
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))  # between pieces
    outcome: str = "ok"
    retry_after: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def is_error(self) -> bool:
        """True when it went otherwise than meant."""
        return self.outcome not in ("ok", "left", "refused")

    @property
    def ttft_s(self) -> float | None:
        """From when it was due to the first piece."""
        return None if self.first_s is None else self.first_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None where there is only one."""
        if self.first_s is None or self.completion_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.completion_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """From when it was due to the answer's end."""
        return self.end_s - self.due_s


def completion_call(model: str, prompt: list[int], num_answer: int, *, cache_salt: str | None = None) -> Call:
    """A streamed completion whose answer has its length, where the server knows `ignore_eos`."""
    body: dict[str, object] = {"model": model, "prompt": prompt, "ignore_eos": True, **_common(num_answer)}
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    return Call(path="/v1/completions", body=msgspec.json.encode(body))


def chat_call(model: str, messages: list[dict[str, str]], num_answer: int) -> Call:
    """A streamed chat answer."""
    body = {"model": model, "messages": messages, **_common(num_answer)}
    return Call(path="/v1/chat/completions", body=msgspec.json.encode(body))


def _common(num_answer: int) -> dict[str, object]:
    return {
        "max_tokens": num_answer,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


GARBAGE = (
    Call(path="/v1/completions", body=b'{"model": ', is_garbage=True),
    Call(path="/v1/completions", body=b'{"model": 1, "prompt": {}}', is_garbage=True),
    Call(path="/v1/chat/completions", body=b'{"messages": "\xff\xfe"}', is_garbage=True),
    Call(path="/v1/chat/completions", body=b"[" * 5000, is_garbage=True),
    Call(path="/v1/no-such-route", body=b"{}", is_garbage=True),
)
"""Bodies and paths that every server has to refuse."""
