"""What clients send as a prompt, in token ids and within the context."""

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from foreword.core.errors import InvalidRequestError
from foreword.core.sequence import Lease
from foreword.llm.loading import LoadedModel
from foreword.llm.outputs import RequestOutput
from foreword.llm.prompts import prompt_token_ids
from foreword.server.cache_policy.plan import AS_COUNTED, CachePlan
from foreword.server.errors import ApiError, as_api_error
from foreword.text.chat_template import ChatTemplate
from foreword.text.messages import strings_in
from foreword.text.rerank_prompt import RerankFormat, choose_format
from foreword.text.turns import TurnMemory

RESERVED_KWARGS = frozenset({"self", "messages", "tools", "add_generation_prompt"})


class Prompt(Struct, frozen=True):
    """Token ids, and the text they came from where it was text."""

    token_ids: list[int]
    text: str | None = None
    leases: tuple[Lease, ...] = ()
    plan: CachePlan = AS_COUNTED


class PromptEncoder:
    """Renders and tokenises for one model, and remembers in which tokens its answers were given. From any thread."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._names = loaded.names
        self._template = loaded.chat_template
        self._max_model_len = loaded.summary.max_model_len
        self._tokenizer = loaded.tokenizer
        self._turns = TurnMemory(loaded.tokenizer)
        self._turns_lock = threading.Lock()

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's template.

        Raises:
            ApiError: it has none.
        """
        if self._template is None:
            raise ApiError(400, "this model has no chat template; use /v1/completions", "model", "model_not_supported")
        return self._template

    @cached_property
    def rerank_format(self) -> RerankFormat:
        """How the model is asked whether a document answers a query. Takes time."""
        return choose_format(self._names, self._tokenizer, self._template)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        namespace: bytes,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
        prefill: str = "",
        param: str = "messages",
    ) -> Prompt:
        """Token ids of a conversation, with answers of ours in the tokens they were generated in. Takes time.

        `tools` are as `ToolUse.as_json` gives them; `prefill` begins the assistant's answer; `param` names the field
        that the conversation came in.

        Raises:
            ApiError, InvalidRequestError: malformed, or longer than the context.
        """
        if kwargs and not RESERVED_KWARGS.isdisjoint(kwargs):
            expected = f"names other than {', '.join(sorted(RESERVED_KWARGS))}"
            raise InvalidRequestError("chat_template_kwargs", expected, sorted(kwargs))
        self.check_size([messages, kwargs, tools], param)
        ids = self.chat_template.encode(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **(kwargs or {})
        )
        if prefill:
            ids += self._tokenizer.encode(prefill, add_special_tokens=False)
        with self._turns_lock:
            ids = self._turns.splice(ids, namespace)
        self._check_len(ids, param)
        return Prompt(ids)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool,
    ) -> str:
        """A conversation as the text the model reads, for people. Takes time.

        Raises:
            ApiError, InvalidRequestError: malformed, or longer than the context.
        """
        self.check_size([messages, tools], "messages")
        return self.chat_template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def encode_prompt(self, prompt: object, param: str = "prompt") -> Prompt:
        """Token ids of text, or token ids as they are, checked. Takes time.

        `param` names the field they came in.

        Raises:
            ApiError, InvalidRequestError: malformed, or longer than the context.
        """
        if isinstance(prompt, str):
            self.check_size(prompt, param)
        given = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
        try:
            text, ids = prompt_token_ids(given, self._tokenizer)
        except InvalidRequestError as error:
            raise as_api_error(error, param=param) from None
        self._check_len(ids, param)
        return Prompt(ids, text)

    def remember(self, output: RequestOutput, index: int, namespace: bytes) -> None:
        """Note the tokens of an answer, for when it comes back as text."""
        with self._turns_lock:
            self._turns.remember(output.prompt_token_ids, output.outputs[index].token_ids, namespace)

    def remember_all(self, output: RequestOutput, namespace: bytes) -> None:
        """Note the tokens of all answers to a prompt."""
        for answer in output.outputs:
            self.remember(output, answer.index, namespace)

    def check_size(self, value: object, param: str) -> None:
        """Refuse before rendering or tokenising what can't fit: no token stands for more bytes than the longest."""
        size = sum(len(text) for text in strings_in(value))
        if size > self._max_model_len and size > self._max_model_len * self._tokenizer.longest_token_bytes:
            raise self._too_long(f"{size} characters", param)

    def _check_len(self, ids: Sequence[int], param: str) -> None:
        if not ids:
            raise InvalidRequestError(param, "at least one token", "none")
        if len(ids) >= self._max_model_len:
            raise self._too_long(f"{len(ids)} tokens", param)

    def _too_long(self, found: str, param: str) -> ApiError:
        message = (
            f"this model's context is {self._max_model_len} tokens, prompt and answer together; {param} has {found}"
        )
        return ApiError(400, message, param, "context_length_exceeded")
