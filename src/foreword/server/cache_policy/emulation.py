"""`--emulate`: a provider's rules for what an account says, so that an application can be tested without the provider.

Only counts follow them. What the engine computes and reuses is the same as without: it reads whatever matches, so an
answer is as fast as it can be, and headers, logs and metrics go on telling the engine's own account.
"""

import re
import time
from collections.abc import Callable
from typing import Literal

from foreword.server.cache_policy.ledger import Ledger, PrefixDigests

Provider = Literal["openai", "anthropic"]
DEFAULT_MINIMUM = 1024
ANTHROPIC_MINIMUMS = (
    (512, r"(fable|mythos)-5|opus-5"),
    (2048, r"opus-4-7|mythos-preview|3-5-haiku|haiku-3-5"),
    (4096, r"opus-4-[56]|haiku-4-5"),
)
"""Fewest tokens that are cached, by model; all others take `DEFAULT_MINIMUM`."""

_EARLIER = re.compile(r"^(gpt-[1-4]|gpt-5(\.[0-5])?(-|$)|o[1-9]|chatgpt)")


class Emulation:
    """One provider's rules, and what it would have stored. `minimum` goes before what is known of a model."""

    def __init__(
        self, provider: Provider, *, minimum: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.provider = provider
        self._minimum = minimum
        self.ledger = Ledger(clock)

    def minimum(self, model: str) -> int:
        """Fewest tokens of a prefix that a model caches."""
        if self._minimum is not None:
            return self._minimum
        if self.provider == "anthropic":
            name = model.lower().replace(".", "-")
            return next((least for least, names in ANTHROPIC_MINIMUMS if re.search(names, name)), DEFAULT_MINIMUM)
        return DEFAULT_MINIMUM

    def counts_intervals(self, model: str) -> bool:
        """True for OpenAI's models before GPT-5.6, which know no breakpoints and count by 128 tokens."""
        return self.provider == "openai" and _EARLIER.search(model.lower()) is not None

    def digests(self, model: str, namespace: bytes, token_ids: list[int], key: str | None = None) -> PrefixDigests:
        """Of a prompt's prefixes: requests of another model, tenant, salt or key share none."""
        parts = [model.encode(), namespace]
        return PrefixDigests(parts if key is None else [*parts, key.encode()], token_ids)
