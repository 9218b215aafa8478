"""One line of a check-up."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fix"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`ok`, `warn` (it runs, but …) or `fix` (it does not); `cure` says what to do where there is something to do."""

    check: str
    status: Status
    detail: str
    cure: str | None = None
