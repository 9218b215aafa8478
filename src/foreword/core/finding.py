"""One line of a check-up."""

from typing import Literal

from msgspec import Struct

Status = Literal["ok", "warn", "fix"]


class Finding(Struct, frozen=True):
    """`ok`, `warn` (it runs, but …) or `fix` (it does not); `cure` says what to do where there is something to do."""

    check: str
    status: Status
    detail: str
    cure: str | None = None
