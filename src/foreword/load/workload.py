"""Made-up requests: seeded, with lengths and shared beginnings as asked for, and some that misbehave on purpose."""

import random
from collections.abc import Iterator
from itertools import cycle

from msgspec import Struct
from msgspec.structs import replace

from foreword.core.errors import InvalidRequestError
from foreword.load.call import GARBAGE, Call, Session, chat_call, completion_call

FIRST_ID, LAST_ID = 100, 249
"""Token ids of made-up prompts: ordinary ones in every vocabulary, and enough for two prompts to part at once."""
_WORDS = ("time", "year", "way", "day", "life", "world", "school", "group", "hand", "part", "place", "case", "week")


class Workload(Struct, frozen=True, kw_only=True):
    """What is asked. `lengths` are prompt and answer tokens, taken in turn.

    `shared` is the share of each prompt that is one of `num_prefixes` common beginnings. With `chat` prompts are
    words, about a token each, as every server takes them; otherwise token ids, exact to the token.
    """

    model: str
    lengths: tuple[tuple[int, int], ...]
    shared: float = 0.0
    num_prefixes: int = 1
    chat: bool = False
    seed: int = 0
    leave: float = 0.0  # share whose client resets the connection
    garbage: float = 0.0  # share that no server may take

    def __post_init__(self) -> None:
        for name in ("shared", "leave", "garbage"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidRequestError(name, "a share from 0 to 1", getattr(self, name))
        if not self.lengths or any(prompt < 1 or answer < 1 for prompt, answer in self.lengths):
            raise InvalidRequestError("lengths", "at least 1 token of prompt and answer", self.lengths)
        if self.num_prefixes < 1:
            raise InvalidRequestError("num_prefixes", "at least 1", self.num_prefixes)

    def sessions(self) -> Iterator[Session]:
        """Requests without end; the same ones on every run."""
        rng = random.Random(self.seed)
        longest = max(prompt for prompt, _ in self.lengths)
        prefixes = [self._tokens(rng, longest) for _ in range(self.num_prefixes)]
        for prompt, answer in cycle(self.lengths):
            if rng.random() < self.garbage:
                yield Session((rng.choice(GARBAGE),))
                continue
            num_shared = int(prompt * self.shared)
            head = rng.choice(prefixes)[:num_shared]
            call = self._call(head, self._tokens(rng, prompt - num_shared), answer)
            if rng.random() < self.leave:
                call = replace(call, leaves_after=rng.randint(0, 5))
            yield Session((call,))

    def _tokens(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(range(FIRST_ID, LAST_ID + 1), k=count)

    def _call(self, head: list[int], own: list[int], answer: int) -> Call:
        if not self.chat:
            return completion_call(self.model, head + own, answer)
        messages = [{"role": "system", "content": _words(head)}] if head else []
        return chat_call(self.model, [*messages, {"role": "user", "content": _words(own) or "go on"}], answer)


def _words(ids: list[int]) -> str:
    return " ".join(_WORDS[number % len(_WORDS)] for number in ids)
