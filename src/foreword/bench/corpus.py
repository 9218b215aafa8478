"""Real English for prompts, token-exact and the same on every run: the docstrings of Python's standard library."""

import ast
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from foreword.core.errors import CapacityError

_SHORTEST = 300  # characters; shorter docstrings repeat one another
_SKIPPED = ("test", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages")


class Encoder(Protocol):
    """The one thing needed of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """Token ids of a text."""


class Corpus:
    """Hands out runs of tokens, each one once: two prompts taken share no more than chance gives.

    `texts` stands in for the standard library's docstrings.
    """

    def __init__(self, tokenizer: Encoder, texts: Iterable[str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._texts = docstrings() if texts is None else iter(texts)
        self._ahead: list[int] = []

    def take(self, num_tokens: int) -> list[int]:
        """The next `num_tokens` tokens.

        Raises:
            CapacityError: there is no more text.
        """
        while len(self._ahead) < num_tokens:
            text = next(self._texts, None)
            if text is None:
                raise CapacityError("the text for prompts is used up: ask for fewer or shorter ones")
            self._ahead += self._tokenizer.encode(text + "\n\n", add_special_tokens=False, parse_special=False)
        taken, self._ahead = self._ahead[:num_tokens], self._ahead[num_tokens:]
        return taken


def docstrings() -> Iterator[str]:
    """Long docstrings of the standard library, each once, in the order of file names. Reads files as it goes."""
    root = Path(sysconfig.get_paths()["stdlib"])
    seen = set()
    for path in sorted([*root.glob("*.py"), *root.glob("*/*.py")]):
        if any(part in _SKIPPED for part in path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # a file kept broken on purpose holds no prose
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) > _SHORTEST and text not in seen:
                    seen.add(text)
                    yield text
