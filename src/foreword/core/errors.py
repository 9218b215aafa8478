"""Errors a caller may catch. Each message is one line and names the field, what was expected and what was got."""


class ForewordError(Exception):
    """Root of every error foreword raises on purpose."""


class InvalidRequestError(ForewordError, ValueError):
    """A value the caller gave is not usable; nothing was changed."""

    def __init__(self, field: str, expected: str, got: object) -> None:
        self.field = field
        self.expected = expected
        self.got = got
        super().__init__(f"{field}: expected {expected}, got {shorten(got)}")


class ModelNotFoundError(ForewordError):
    """No model file or folder lies where the caller pointed."""


class ModelFormatError(ForewordError, ValueError):
    """A model file is malformed; names the file and the field within it."""

    def __init__(self, file: object, field: str, detail: str) -> None:
        self.file = str(file)
        self.field = field
        self.detail = detail
        super().__init__(f"{self.file}: {field}: {detail}")


class CapacityError(ForewordError):
    """A request or a setting can never fit in the memory that was granted."""


class QueueFullError(ForewordError):
    """The bounded waiting queue is full now; the same request may be accepted later. Nothing was changed.

    `retry_after_s` is when, where that is known.
    """

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueTimeoutError(ForewordError):
    """A request waited longer than it may without being started; the same request may succeed later."""


class StepFailedError(ForewordError):
    """The step that computed this request failed: the request is over, the engine goes on."""


class ConstraintError(ForewordError):
    """An answer can't go on in the form it was asked for; the request is over, the engine goes on."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"structured_output: {reason}")
        self.reason = reason


class StalledError(ForewordError):
    """Whoever reads an answer fell too far behind it; the request was ended."""


class UnavailableError(ForewordError):
    """The engine takes no requests: it is shutting down, or broken beyond going on."""


class InvariantError(ForewordError):
    """Internal bookkeeping contradicts itself: a bug in foreword, never the caller's fault."""


def shorten(value: object, limit: int = 80) -> str:
    """`repr` of a value, printable, on one line and at most `limit` characters."""
    try:
        text = repr(value)
    except ValueError:  # an int beyond the interpreter's digit limit has no repr
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else "a value"
    return text if len(text) <= limit else text[: limit - 1] + "…"
