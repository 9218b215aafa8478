"""The published table of fields is the code's, and covers all that the official clients can send."""

import re
from inspect import signature
from pathlib import Path

import cohere
import msgspec
import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams

from foreword.server.anthropic.schema import CountRequest, MessagesRequest
from foreword.server.app import all_routes
from foreword.server.openai.embeddings import EmbeddingRequest
from foreword.server.openai.responses_schema import InputTokensRequest, ResponsesRequest
from foreword.server.openai.schema import ChatRequest, CompletionRequest
from foreword.server.openapi.document import FIELD_CLASSES
from foreword.server.rerank_schema import RerankRequest, ScoreRequest
from tests.server.conftest import LiveServer

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
ENDPOINTS: dict[str, tuple[type[msgspec.Struct], type]] = {
    "/v1/chat/completions": (ChatRequest, ChatParams),
    "/v1/completions": (CompletionRequest, CompletionParams),
    "/v1/responses": (ResponsesRequest, ResponseParams),
    "/v1/responses/input_tokens": (InputTokensRequest, InputTokenCountParams),
    "/v1/embeddings": (EmbeddingRequest, EmbeddingCreateParams),
    "/rerank": (RerankRequest, type(None)),
    "/score": (ScoreRequest, type(None)),
    "/v1/messages": (MessagesRequest, MessageCreateParamsBase),
}


def table(path: str) -> dict[str, str]:
    """Field -> class, as published."""
    section = DOCUMENT.partition(f"### `{path}`\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
    assert len(dict(rows)) == len(rows)
    return dict(rows)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_table_is_the_codes(path: str) -> None:
    struct, _ = ENDPOINTS[path]
    ignored, refused = FIELD_CLASSES[struct]
    expected = dict.fromkeys(struct.__struct_fields__, "supported")
    expected |= dict.fromkeys(ignored, "ignored") | dict.fromkeys(refused, "refused")

    assert table(path) == expected


@pytest.mark.parametrize("path", ENDPOINTS)
def test_whatever_the_client_can_send_has_a_class(path: str) -> None:
    struct, params = ENDPOINTS[path]

    assert set(getattr(params, "__annotations__", ())) - set(struct.__struct_fields__) == set()


def test_whatever_can_be_counted_has_a_class() -> None:
    assert set(MessageCountTokensParams.__annotations__) - set(CountRequest.__struct_fields__) == set()


def test_whatever_the_cohere_client_can_send_has_a_class() -> None:
    sent = {name for call in (cohere.ClientV2.rerank, cohere.Client.rerank) for name in signature(call).parameters}

    assert sent - {"self", "request_options"} - set(RerankRequest.__struct_fields__) == set()


def test_every_route_is_in_the_document(server: LiveServer) -> None:
    named = set(re.findall(r"(/[\w/.{}-]+)", DOCUMENT.partition("## Routes")[2].partition("\n## ")[0]))

    assert {route.path for route in all_routes(server.service)} - named == set()
