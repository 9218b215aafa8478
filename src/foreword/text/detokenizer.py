"""Token ids to text, one token at a time."""

import codecs
from collections.abc import Sequence

from foreword.text.tokenizer import Tokenizer

_LONGEST_CHARACTER = 4  # bytes of UTF-8


class IncrementalDetokenizer:
    """Text of a growing sequence of tokens, never with half a character in it.

    All pieces together equal `Tokenizer.decode` of all ids; after a prompt, the part of it that the new ids add.
    Bytes that can't become a character any more are U+FFFD.
    Cost: O(bytes of the token) each.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """Begin behind a prompt, of which only the end is read; `shown` are special tokens that are text as well."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drops_space = tokenizer.adds_leading_space
        tail = self._tail(prompt_ids)
        if tail:
            self._drops_space = False
            self._decoder.decode(tail)  # leaves what may be the first bytes of a character

    def add(self, token_id: int) -> str:
        """Take one token; returns the text that is certain now, often "".

        Raises:
            InvalidRequestError: the id isn't in the vocabulary; nothing was changed.
        """
        return self._decoder.decode(self._bytes_of(token_id))

    def finish(self) -> str:
        """The sequence is over: U+FFFD for the beginning of a character that never came, or ""."""
        return self._decoder.decode(b"", final=True)

    def _bytes_of(self, token_id: int) -> bytes:
        if self._tokenizer.is_special(token_id) and self._skip and token_id not in self._shown:
            return b""
        data = self._tokenizer.token_bytes(token_id)
        if data and self._drops_space:
            self._drops_space = False
            return data[1:] if data.startswith(b" ") else data
        return data

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        tail = b""
        for token_id in reversed(prompt_ids):
            if not (self._skip and self._tokenizer.is_special(token_id)):
                tail = self._tokenizer.token_bytes(token_id) + tail
            if len(tail) >= _LONGEST_CHARACTER:
                break
        return tail
