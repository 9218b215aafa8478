"""Prompts that end where a label comes next: instruction, query, one document, a closing question.

    before                          document      after
    ├── instruction ── query ──┤    ├── ... ──┤   ├── question ──┤ ?
    read once for all documents     one a prompt

The three are tokenised apart, so all prompts of one query begin with the same tokens, and a document can be cut to a
number of tokens. White space before the document goes with it: tokenizers spell a word with the space before it.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from foreword.core.errors import InvalidRequestError
from foreword.text.chat_template import ChatTemplate
from foreword.text.tokenizer import SpecialMatch, Tokenizer

MAX_TEMPLATE_LENGTH = 8192
MAX_INSTRUCTION_LENGTH = 32_768
MAX_LABEL_LENGTH = 64

_SLOT = re.compile(r"\{(instruction|query|document)\}")
_MARK = "foreword-rerank-mark"
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_QUESTION = (
    "{instruction}.\n\nQuery: {query}\n\nDocument: {document}\n\n"
    "Question: Does the document answer the query? Answer True or False."
)
_QWEN3_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_QWEN3_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_QWEN3_PAIR = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"


class RerankFormat(Struct, frozen=True, kw_only=True):
    """How query and document become a prompt.

    `template` holds `{query}` and then `{document}`, each once, and may hold `{instruction}` before the document.
    `opening` and `closing` stand around it: special tokens written out there are meant, and nowhere else.
    The first of `labels` means "relevant".
    """

    name: str
    template: str
    instruction: str = _INSTRUCTION
    labels: tuple[str, str] = ("True", "False")
    opening: str = ""
    closing: str = ""


PLAIN = RerankFormat(name="plain", template=f"{_QUESTION}\nAnswer:")
QWEN3 = RerankFormat(
    name="qwen3", template=_QWEN3_PAIR, labels=("yes", "no"), opening=_QWEN3_BEFORE, closing=_QWEN3_AFTER
)
"""Source   the model card of Qwen3-Reranker."""


def choose_format(names: Iterable[str], tokenizer: Tokenizer, template: ChatTemplate | None) -> RerankFormat:
    """The format a model is best asked in: its own where its name tells, its chat template's turns, or plain text."""
    plain_names = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in names]
    if any("qwen3reranker" in name for name in plain_names) and {"<|im_start|>", "<|im_end|>"} <= set(
        tokenizer.special_tokens
    ):
        return QWEN3
    if template is None:
        return PLAIN
    try:
        opening, mark, closing = template.render([{"role": "user", "content": _MARK}]).partition(_MARK)
    except InvalidRequestError:
        return PLAIN  # a template that takes no conversation of one message
    if not mark or _MARK in closing:
        return PLAIN
    return RerankFormat(name="chat", template=_QUESTION, opening=opening, closing=closing)


class RerankSettings(Struct, frozen=True, kw_only=True):
    """What a caller changes of the format; None leaves a part as it is. A template of the caller's is plain text."""

    instruction: str | None = None
    template: str | None = None
    labels: Sequence[str] | None = None
    max_tokens_per_doc: int | None = None


class RerankPrompts:
    """Makes prompts for one model.

    Raises:
        InvalidRequestError: a part of the settings is out of its bounds; a label is not one token.
    """

    def __init__(self, format: RerankFormat, settings: RerankSettings, tokenizer: Tokenizer) -> None:
        template = format.template if settings.template is None else _checked_template(settings.template)
        self._tokenizer = tokenizer
        self._format = format
        self._instruction = format.instruction if settings.instruction is None else settings.instruction
        if not isinstance(self._instruction, str) or len(self._instruction) > MAX_INSTRUCTION_LENGTH:
            expected = f"text of at most {MAX_INSTRUCTION_LENGTH} characters"
            raise InvalidRequestError("instruction", expected, self._instruction)
        limit = settings.max_tokens_per_doc
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InvalidRequestError("max_tokens_per_doc", "an integer of at least 1", limit)
        self._limit = limit
        head, _, tail = template.partition("{document}")
        self._head = head.rstrip(" ")
        self._space = head[len(self._head) :]
        self._after = self._encode_after(tail)
        self.label_ids = self._label_ids(format.labels if settings.labels is None else settings.labels, tail)

    def before(self, query: str) -> list[int]:
        """Token ids that all prompts of a query begin with: instruction and query, read once."""
        if not isinstance(query, str) or not query:
            raise InvalidRequestError("query", "text", query)
        values = {"instruction": self._instruction, "query": query}
        middle = _SLOT.sub(lambda slot: values[slot[1]], self._head)
        text = self._format.opening + middle
        ids = self._tokenizer.encode_around(text, self._special(self._format.opening))
        return ids if self._format.opening else [*self._tokenizer.prefix_ids, *ids]  # a chat template writes its own

    def prompt(self, before: Sequence[int], document: str, room: int) -> tuple[list[int], bool]:
        """The token ids of a document's prompt, at most `room` of them, and whether the document had to be cut.

        Raises:
            InvalidRequestError: the document is no text, or not even the rest fits.
        """
        if not isinstance(document, str):
            raise InvalidRequestError("documents", "text", document)
        left = room - len(before) - len(self._after)
        if left < 1:
            parts = len(before) + len(self._after)
            raise InvalidRequestError("query", f"a prompt of fewer than {room} tokens beside the document", parts)
        limit = left if self._limit is None else min(left, self._limit)
        most = (
            limit + 1
        ) * self._tokenizer.longest_token_bytes  # characters that could matter: no token stands for more
        text = f" {self._space}{document[:most]}"
        ids = self._tokenizer.encode_around(text, (), start=1)
        return [*before, *ids[:limit], *self._after], len(ids) > limit or len(document) > most

    def _encode_after(self, tail: str) -> list[int]:
        offset = len(tail) + 1
        closing = [
            SpecialMatch(offset + cut.start, offset + cut.stop, cut.token_id)
            for cut in self._special(self._format.closing)
        ]
        return self._tokenizer.encode_around(f" {tail}{self._format.closing}", closing, start=1)

    def _special(self, text: str) -> list[SpecialMatch]:
        return self._tokenizer.find_special(text)

    def _label_ids(self, labels: Sequence[str], tail: str) -> tuple[int, int]:
        if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != 2:
            raise InvalidRequestError("labels", "two words, the first of which means relevant", labels)
        ends_a_word = not (tail + self._format.closing)[-1:].isspace() and not self._ends_with_special()
        space = " " if ends_a_word else ""
        first, second = (self._label_id(label, space) for label in labels)
        if first == second:
            raise InvalidRequestError("labels", "two different words", list(labels))
        return first, second

    def _ends_with_special(self) -> bool:
        return bool(self._after) and self._tokenizer.is_special(self._after[-1])

    def _label_id(self, label: str, space: str) -> int:
        if not isinstance(label, str) or not 0 < len(label) <= MAX_LABEL_LENGTH:
            raise InvalidRequestError("labels", f"words of 1 to {MAX_LABEL_LENGTH} characters", label)
        ids = self._tokenizer.encode_around(f" {space}{label}", (), start=1)
        if len(ids) != 1:
            raise InvalidRequestError("labels", "words that are one token for this model", label)
        return ids[0]


def _checked_template(template: object) -> str:
    expected = "text with {query} and then {document}, each once, and {instruction} at most once before the document"
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE_LENGTH:
        raise InvalidRequestError("template", f"at most {MAX_TEMPLATE_LENGTH} characters: {expected}", template)
    slots = [slot[1] for slot in _SLOT.finditer(template)]
    if sorted(slots) not in (["document", "query"], ["document", "instruction", "query"]) or slots[-1] != "document":
        raise InvalidRequestError("template", expected, template)
    return template
