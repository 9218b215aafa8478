"""Conversations to prompt text and token ids, by the template a model brings."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template

from foreword.core.errors import InvalidRequestError, ModelFormatError
from foreword.text.forgery import ForgeryGuard
from foreword.text.json_tokenizer import MAX_CONFIG_BYTES, read_json
from foreword.text.messages import plain_messages, plain_value, strings_in
from foreword.text.template_functions import RefusalError
from foreword.text.template_limits import LimitError, Meter
from foreword.text.template_sandbox import TemplateEnvironment
from foreword.text.tokenizer import Tokenizer

MAX_TEMPLATE_CHARACTERS = 64 << 10
MAX_OUTPUT_CHARACTERS = 32 << 20
RESERVED_NAMES = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "unk_token", "pad_token", "tokenize"}
    | {"chat_template", "range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now"}
)
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Used for a model without a template whose vocabulary has the tokens of this one."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class ChatTemplate:
    """A template and the tokenizer it writes for.

    The template may come from an untrusted file: it runs in a sandbox, and a template that is broken, hostile or not
    meant for a conversation makes the request fail, not the model's load. It is compiled at first use.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, *, clock: Callable[[], datetime] = datetime.now) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._environment = TemplateEnvironment(clock)
        self._compiled: Template | None = None
        self._guard = ForgeryGuard(tokenizer, source)
        self._constants = {
            name: tokenizer.token_text(token_id)
            for name, token_id in (
                ("bos_token", tokenizer.bos_token_id),
                ("eos_token", tokenizer.eos_token_id),
                ("unk_token", tokenizer.unk_token_id),
                ("pad_token", tokenizer.pad_token_id),
            )
            if token_id is not None
        }

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], tokenizer: Tokenizer, *, clock: Callable[[], datetime] = datetime.now
    ) -> "ChatTemplate":
        """The template in a GGUF file's metadata, or ChatML for a vocabulary made for it.

        Raises:
            InvalidRequestError: there is none, so the model can't chat.
        """
        source = metadata.get("tokenizer.chat_template")
        return cls(_chosen(source, tokenizer), tokenizer, clock=clock)

    @classmethod
    def from_folder(
        cls, folder: str | Path, tokenizer: Tokenizer, *, clock: Callable[[], datetime] = datetime.now
    ) -> "ChatTemplate":
        """The template in `chat_template.jinja` or `tokenizer_config.json` of a model's folder, or ChatML.

        Raises:
            InvalidRequestError: there is none, so the model can't chat.
            ModelFormatError: a file is malformed.
        """
        folder = Path(folder)
        source: object = None
        if (folder / "chat_template.jinja").is_file():
            source = _read_text(folder / "chat_template.jinja")
        elif (folder / "tokenizer_config.json").is_file():
            source = _named_default(read_json(folder / "tokenizer_config.json", MAX_CONFIG_BYTES).get("chat_template"))
        return cls(_chosen(source, tokenizer), tokenizer, clock=clock)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt as text, for people: in it a caller's words can't be told from the template's, as in `encode`.

        Args:
            messages: mappings with `role`, `content` (text, or a list of text parts), and what else the template reads.
            tools: JSON schemas of functions the model may call.
            add_generation_prompt: end where the assistant's answer begins.
            kwargs: further variables of the template.

        Raises:
            InvalidRequestError: a message is malformed, or the template refuses it, fails or runs too long.
        """
        return self._run(self._variables(messages, tools, add_generation_prompt, kwargs))

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt as token ids: special tokens where the template writes them, and nowhere else.

        Text of the caller in which a special token is written out becomes ordinary tokens. Everything between two
        special tokens is tokenised in one go, so that ids equal those of the rendered text whenever the caller's
        text holds no special token. Arguments and errors as for `render`.
        """
        variables = self._variables(messages, tools, add_generation_prompt, kwargs)
        text, cuts = self._guard.render(variables, self._run)
        return self._tokenizer.encode_around(text, cuts)

    def _variables(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> dict[str, Any]:
        for name in kwargs:
            if name in RESERVED_NAMES or not _NAME.fullmatch(name):
                raise InvalidRequestError("chat_template_kwargs", "names that are not the template's own", name)
        if tools is not None and not isinstance(tools, list | tuple):
            raise InvalidRequestError("tools", "a list of JSON schemas", tools)
        return {
            **plain_value(dict(kwargs), "chat_template_kwargs"),
            "messages": plain_messages(messages),
            "tools": plain_value(tools, "tools"),
            "add_generation_prompt": bool(add_generation_prompt),
        }

    def _run(self, variables: Mapping[str, Any]) -> str:
        """Render once; whatever goes wrong in the template is the request's error."""
        size = sum(map(len, strings_in(variables)))
        try:
            with self._environment.metered(Meter(size)):
                return "".join(_bounded(self._template().generate(**{**self._constants, **variables})))
        except LimitError as error:
            raise InvalidRequestError("chat_template", "a template that ends in bounds", str(error)) from None
        except RefusalError as error:
            expected = "a conversation that the model's chat template accepts"
            raise InvalidRequestError("messages", expected, str(error)) from None
        except Exception as error:  # a template is a program by a stranger: it can raise anything
            detail = f"{type(error).__name__}: {error}"
            raise InvalidRequestError("chat_template", "a template that can write this conversation", detail) from None

    def _template(self) -> Template:
        if self._compiled is None:
            if len(self.source) > MAX_TEMPLATE_CHARACTERS:
                raise LimitError(f"{len(self.source)} characters; at most {MAX_TEMPLATE_CHARACTERS} are accepted")
            self._compiled = self._environment.from_string(self.source)
        return self._compiled


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_OUTPUT_CHARACTERS:
            raise LimitError(f"more than {MAX_OUTPUT_CHARACTERS} characters of output")
        yield piece


def _chosen(source: object, tokenizer: Tokenizer) -> str:
    if isinstance(source, str) and source:
        return source
    if {"<|im_start|>", "<|im_end|>"} <= tokenizer.special_tokens.keys():
        return CHATML
    raise InvalidRequestError("messages", "a model with a chat template; this one takes plain prompts only", source)


def _named_default(source: object) -> object:
    """`tokenizer_config.json` may hold several templates by name."""
    if not isinstance(source, list):
        return source
    named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
    return named.get("default")


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4 * MAX_TEMPLATE_CHARACTERS + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFormatError(path, "file", str(error)) from None
