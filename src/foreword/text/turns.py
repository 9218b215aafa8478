"""Keeps a conversation's tokens as they were generated, so that the next turn hits through the end of the last answer.

A client sends an answer back as text, and text tokenises in one way only: the way a model was *not* bound to when it
generated (digits, runs of spaces, emoji, code). Where the conversation up to an answer's end is, special tokens and
text, exactly what we generated, the tokens we generated stand for it too, and their K and V are in the cache.

    rendered    <|im_start|> user hi <|im_end|> … <|im_start|> assistant 3.14159 <|im_end|> <|im_start|> user …
    remembered  <|im_start|> user hi <|im_end|> … <|im_start|> assistant 3.14159|
                └──────── same special tokens, same text between them: use these ids ───┘ then go on as rendered

Equality is of special token ids and of text between them, framed by length: user text that spells a special token is
text, never that token. Bytes that are no text are U+FFFD, as whoever got the answer saw them: an answer that was cut
off inside a character comes back with one.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from foreword.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from hashlib import _Hash

MAX_ANSWERS = 1024
MAX_TOKENS = 4 << 20  # of all remembered sequences together: 16 MiB as 32-bit ids


class TurnMemory:
    """Remembers generated sequences, a bounded number of them, the longest unused going first.

    `namespace` separates tenants: what one has generated is never seen by another.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_answers: int = MAX_ANSWERS, max_tokens: int = MAX_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._max_answers = max_answers
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._answers: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def remember(self, prompt_ids: Sequence[int], generated_ids: Sequence[int], namespace: bytes = b"") -> None:
        """Take in an answer as it was generated, its end token included or not. Cost: O(tokens)."""
        ids = [*prompt_ids, *generated_ids]
        while ids and self._tokenizer.is_special(ids[-1]):
            ids.pop()
        if len(ids) <= len(prompt_ids) or len(ids) > self._max_tokens:
            return
        *_, (_, key) = self._ends(ids, namespace)
        replaced = self._answers.pop(key, ())
        self._answers[key] = tuple(ids)
        self._num_tokens += len(ids) - len(replaced)
        while len(self._answers) > self._max_answers or self._num_tokens > self._max_tokens:
            _, dropped = self._answers.popitem(last=False)
            self._num_tokens -= len(dropped)

    def splice(self, ids: list[int], namespace: bytes = b"") -> list[int]:
        """The same conversation with the longest remembered beginning in its generated form. Cost: O(tokens)."""
        if not self._answers:
            return ids
        for end, key in reversed(self._ends(ids, namespace)):
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
                return [*found, *ids[end:]]
        return ids

    def _ends(self, ids: Sequence[int], namespace: bytes) -> list[tuple[int, bytes]]:
        """Where each run of ordinary tokens ends, with the digest of everything before."""
        digest = hashlib.sha256(len(namespace).to_bytes(8, "little") + namespace)
        ends = []
        start = 0
        special = self._tokenizer.special_token_ids
        for position in [position for position, token in enumerate(ids) if token in special]:
            if position > start:
                ends.append((position, self._close_run(digest, ids[start:position])))
            digest.update(b"S" + ids[position].to_bytes(4, "little"))
            start = position + 1
        if start < len(ids):
            ends.append((len(ids), self._close_run(digest, ids[start:])))
        return ends

    def _close_run(self, digest: "_Hash", run: Sequence[int]) -> bytes:
        text = self._tokenizer.spell(run).decode("utf-8", "replace").encode()
        digest.update(b"T" + len(text).to_bytes(8, "little") + text)
        return digest.digest()
