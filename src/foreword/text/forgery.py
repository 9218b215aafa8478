"""Keeps a caller's text from becoming special tokens, by finding out which of them the template itself wrote.

Idea: render with every character of the caller's that special tokens are spelled with replaced by a stand-in, a
rare character that occurs nowhere else. The special tokens in *that* text are the template's own.
Putting the characters back gives the text to tokenise, and the places to cut it.

A template that looks into the text (`'</think>' in content`) may write something else for the stand-ins. So the
conversation is rendered as it is, too; where the two differ, the plain rendering counts if it has the same special
tokens in the same order, and the guarded one otherwise. Strings that hold a special token or a piece of one at an end
keep their stand-ins in both.

User-defined tokens such as `<think>` are text like any other and aren't guarded.
Text without such characters needs one rendering. A template that spells a token around a caller's bare word, as
`'<|' + name + '|>'`, is taken at its word.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from foreword.core.errors import InvalidRequestError
from foreword.text.messages import strings_in
from foreword.text.tokenizer import SpecialMatch, Tokenizer

_RARE_CHARACTERS = range(0x20000, 0x2A6D7)
"""CJK Extension B: letters without case, which even `repr` writes as they are (private-use characters it doesn't)."""

_WORD = re.compile(r"[A-Za-z0-9_]")

Render = Callable[[Mapping[str, Any]], str]


class ForgeryGuard:
    """Renders conversations so that every special token is known to be the template's."""

    def __init__(self, tokenizer: Tokenizer, template_source: str) -> None:
        self._tokenizer = tokenizer
        texts = list(tokenizer.special_tokens)
        self._marks = frozenset(character for text in texts for character in _telling_characters(text))
        self._mark_pattern = re.compile(f"[{re.escape(''.join(sorted(self._marks)))}]") if self._marks else None
        self._texts = texts
        self._beginnings = frozenset(text[:stop] for text in texts for stop in range(1, len(text)))
        self._endings = frozenset(text[start:] for text in texts for start in range(1, len(text)))
        self._every_text = "\0".join(texts)
        self._longest = max(map(len, texts), default=0)
        self._template_characters = frozenset(template_source)

    def render(self, variables: Mapping[str, Any], render: Render) -> tuple[str, list[SpecialMatch]]:
        """The prompt text, and the special tokens in it that the template wrote."""
        if self._mark_pattern is None or not any(map(self._mark_pattern.search, strings_in(dict(variables)))):
            text = render(variables)
            return text, self._tokenizer.find_special(text)
        stand_ins = self._stand_ins(variables)
        originals = {ord(stand_in): chr(mark) for mark, stand_in in stand_ins.items()}

        guarded = render(_replaced(variables, lambda text: text.translate(stand_ins)))
        cuts = self._tokenizer.find_special(guarded)
        text = guarded.translate(originals)

        plain = render(_replaced(variables, lambda text: text.translate(stand_ins) if self._is_risky(text) else text))
        plain_text = plain.translate(originals)
        if plain_text != text:
            plain_cuts = self._tokenizer.find_special(plain)
            if [cut.token_id for cut in plain_cuts] == [cut.token_id for cut in cuts]:
                return plain_text, plain_cuts
        return text, cuts

    def _stand_ins(self, variables: Mapping[str, Any]) -> dict[int, str]:
        """Character -> a character that neither the caller nor the template uses."""
        used = set(self._template_characters).union(*map(set, strings_in(dict(variables))))
        free = (chr(code) for code in _RARE_CHARACTERS if chr(code) not in used)
        stand_ins = {ord(mark): stand_in for mark, stand_in in zip(sorted(self._marks), free, strict=False)}
        if len(stand_ins) < len(self._marks):
            raise InvalidRequestError(
                "messages", "text that leaves some of 42,711 rare characters unused", "all of them"
            )
        return stand_ins

    def _is_risky(self, text: str) -> bool:
        """True if a special token is written in the text, or it could be completed by what stands beside it."""
        if any(token in text for token in self._texts):
            return True
        if len(text) < self._longest and text in self._every_text:
            return True
        sizes = range(1, min(self._longest, len(text) + 1))
        return any(text[-size:] in self._beginnings or text[:size] in self._endings for size in sizes)


def _telling_characters(token: str) -> Iterable[str]:
    """Characters without which the token can't be spelled: its punctuation, or all of it where it is a bare word."""
    marks = [character for character in token if not _WORD.match(character)]
    return marks or list(token)


def _replaced(variables: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The same values with every string of the caller's changed; roles are from a fixed list and stay."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {change(name): walk(item) for name, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return value

    changed = {name: walk(value) for name, value in variables.items()}
    for copy, message in zip(changed["messages"], variables["messages"], strict=True):
        copy["role"] = message["role"]
    return changed
