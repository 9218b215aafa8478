"""Conversations to prompt text and token ids, by the template a model brings."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.core.errors import InvalidRequestError, ModelFormatError
from foreword.text.forgery import ForgeryGuard
from foreword.text.json_tokenizer import MAX_CONFIG_BYTES, read_json
from foreword.text.messages import plain_messages, plain_value
from foreword.text.tokenizer import Tokenizer
from foreword.text.tool_formats import HERMES, MISTRAL, ToolFormat, tool_format
from foreword.text.tool_prompt import mentions_tools, with_short_ids, with_tools_told

if TYPE_CHECKING:
    from foreword.text.template_program import TemplateProgram

_MAX_FILE_BYTES = 256 << 10  # of a template's file; fewer characters are accepted where it is run
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
_TOOL_FILE = Path("additional_chat_templates") / "tool_use.jinja"


class ChatTemplate:
    """A template and the tokenizer it writes for.

    The template may come from an untrusted file: it runs in a sandbox, and a template that is broken, hostile or not
    meant for a conversation makes the request fail, not the model's load. It is compiled at first use.

    `tool_source` is the one for conversations with tools, where the model brings two. One that doesn't know of tools is
    given them in the words of `foreword.text.tool_prompt`.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        tool_source: str | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self.tool_source = tool_source or source
        self._tokenizer = tokenizer
        self._clock = clock
        self._guard = ForgeryGuard(tokenizer, self.source + self.tool_source)
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
        tool_source = _text_or_none(metadata.get("tokenizer.chat_template.tool_use"))
        return cls(_chosen(source, tokenizer), tokenizer, tool_source=tool_source, clock=clock)

    @classmethod
    def from_folder(
        cls, folder: str | Path, tokenizer: Tokenizer, *, clock: Callable[[], datetime] = datetime.now
    ) -> "ChatTemplate":
        """The template in `chat_template.jinja` or `tokenizer_config.json` of a model's folder, or ChatML.

        One for tools is `additional_chat_templates/tool_use.jinja`, or the one named `tool_use`.

        Raises:
            InvalidRequestError: there is none, so the model can't chat.
            ModelFormatError: a file is malformed.
        """
        folder = Path(folder)
        named: dict[object, object] = {}
        if (folder / "chat_template.jinja").is_file():
            named = {"default": _read_text(folder / "chat_template.jinja")}
            if (folder / _TOOL_FILE).is_file():
                named["tool_use"] = _read_text(folder / _TOOL_FILE)
        elif (folder / "tokenizer_config.json").is_file():
            named = _by_name(read_json(folder / "tokenizer_config.json", MAX_CONFIG_BYTES).get("chat_template"))
        tool_source = _text_or_none(named.get("tool_use"))
        return cls(_chosen(named.get("default"), tokenizer), tokenizer, tool_source=tool_source, clock=clock)

    @cached_property
    def _program(self) -> "TemplateProgram":
        # jinja2 takes a thirtieth of a server's start to import, and prompts of plain text or token ids never need it.
        from foreword.text.template_program import TemplateProgram

        return TemplateProgram(self._clock)

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes tool calls, or None where its template asks for a way that can't be read here."""
        return tool_format(self.tool_source) if self._program.reads_tools(self.tool_source) else HERMES

    @property
    def call_opener_id(self) -> int | None:
        """The special token that opens a tool call as the model writes it; None where text does."""
        form = self.tool_format
        return None if form is None else self._tokenizer.special_tokens.get(form.opener)

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
            tools: JSON schemas of functions the model may call, each `{"type": "function", "function": {…}}`.
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
        plain, told = plain_messages(messages), plain_value(tools or None, "tools")
        if told or mentions_tools(plain):
            source = self.tool_source if told else self.source
            if not self._program.reads_tools(source):
                plain, told = with_tools_told(plain, told), None
            elif tool_format(source) is MISTRAL:
                plain = with_short_ids(plain)
        return {
            **plain_value(dict(kwargs), "chat_template_kwargs"),
            "messages": plain,
            "tools": told,
            "add_generation_prompt": bool(add_generation_prompt),
        }

    def _run(self, variables: Mapping[str, Any]) -> str:
        source = self.tool_source if variables["tools"] else self.source
        return self._program.run(source, variables, self._constants)


def _chosen(source: object, tokenizer: Tokenizer) -> str:
    if isinstance(source, str) and source:
        return source
    if {"<|im_start|>", "<|im_end|>"} <= tokenizer.special_tokens.keys():
        return CHATML
    raise InvalidRequestError("messages", "a model with a chat template; this one takes plain prompts only", source)


def _by_name(source: object) -> dict[object, object]:
    """`tokenizer_config.json` may hold several templates by name."""
    if not isinstance(source, list):
        return {"default": source}
    return {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}


def _text_or_none(source: object) -> str | None:
    return source if isinstance(source, str) and source else None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFormatError(path, "file", str(error)) from None
