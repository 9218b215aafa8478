"""Bodies of `/rerank` and its aliases and of `/score`: Cohere's, Jina's and vLLM's fields in one type each."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from foreword.server.errors import ApiError, unsupported
from foreword.server.limits import MAX_DOCUMENTS
from foreword.server.tenants import check_salt
from foreword.text.rerank_prompt import RerankSettings

SCORE_IGNORED = ("user",)
RERANK_IGNORED = ("priority", "user")
RERANK_REFUSED = ("max_chunks_per_doc", "rank_fields", "relevant_spans")
SCORE_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))

Texts = str | Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document as an object."""

    text: str


class PromptFields(msgspec.Struct, kw_only=True):
    """What may be changed of the prompt a document is put into; names of ours but for the second."""

    model: str
    max_tokens_per_doc: Annotated[int, Meta(ge=1)] | None = None
    instruction: str | None = None
    template: str | None = None
    labels: list[str] | None = None
    cache_salt: str | None = None

    user: Any = None

    def settings(self) -> RerankSettings:
        """The same for prompts, with their own checks.

        Raises:
            InvalidRequestError: `cache_salt` can't be one.
        """
        check_salt(self.cache_salt)
        return RerankSettings(
            instruction=self.instruction,
            template=self.template,
            labels=self.labels,
            max_tokens_per_doc=self.max_tokens_per_doc,
        )


class RerankRequest(PromptFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `/rerank`, `/v1/rerank` and `/v2/rerank`."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[int, Meta(ge=0)] | None = None
    return_documents: bool | None = None

    priority: Any = None

    max_chunks_per_doc: Any = None
    rank_fields: Any = None
    relevant_spans: Any = None

    def texts(self) -> list[str]:
        """The documents' texts.

        Raises:
            ApiError: 400, a field that would matter isn't supported.
        """
        for name in RERANK_REFUSED:
            if getattr(self, name) is not None:
                raise unsupported(name)
        return [document if isinstance(document, str) else document.text for document in self.documents]


class ScoreRequest(PromptFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `/score` and `/v1/score`: one pair of vLLM's names."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    def pair(self) -> tuple[str, str]:
        """The fields that have queries and documents.

        Raises:
            ApiError: 400, not exactly one pair of fields.
        """
        given = {name for pair in SCORE_PAIRS for name in pair if getattr(self, name) is not None}
        for first, second in SCORE_PAIRS:
            if given == {first, second}:
                return first, second
        pairs = ", ".join(f"{first} and {second}" for first, second in SCORE_PAIRS)
        raise ApiError(400, f"text_1: expected one of these pairs: {pairs}", "text_1")
