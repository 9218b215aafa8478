"""Structured output compiled beside everything else a server does."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from foreword.core.structured_output import StructuredOutput
from foreword.core.token_constraint import TokenConstraint
from foreword.text.constraints import ConstraintCompiler
from foreword.text.tokenizer import Tokenizer


class Constraining:
    """Compiles in one thread of its own: a slow form delays other forms, and neither other text nor a step."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._compiler = ConstraintCompiler(tokenizer)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="foreword-constraints")

    async def compile(self, wanted: StructuredOutput | None) -> TokenConstraint | None:
        """What structured output means in tokens; None for any text.

        Raises:
            InvalidRequestError: it can't be enforced.
        """
        if wanted is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._compiler.compile, wanted)

    def close(self) -> None:
        """Start nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
