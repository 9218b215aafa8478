"""Rerank, score and embeddings over HTTP, with the official clients and without; every number the engine's own."""

import asyncio
import base64
import http.client
import json
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import openai
import pytest
from cohere.v2.types.v2rerank_response import V2RerankResponse
from openai.types import CreateEmbeddingResponse

from foreword import LLM, RerankSettings
from foreword.server.limits import MAX_DOCUMENTS, MAX_INPUTS, Limits
from foreword.text.rerank_prompt import RerankPrompts
from tests.llm.rerank_model import rerank_model
from tests.server.conftest import MODEL, Keyed, LiveServer, StartServer
from tests.server.wire import Answer, send

QUERY = "which river is longest"
DOCUMENTS = [f"the river number {i} is {i * 37 % 11} miles long" for i in range(9)]
TEXTS = ["a text", "another text that is longer", "a text"]


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rerank_model(tmp_path_factory.mktemp("rerank-served"))


@pytest.fixture(scope="session")
def _ranking(path: Path) -> Iterator[LiveServer]:
    server = LiveServer(str(path), kv_memory_bytes=8 << 20)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def ranking(_ranking: LiveServer) -> Iterator[LiveServer]:
    """A server whose model has labels of one token; idle before and after, its cache empty."""
    _ranking.run(_ranking.service.engine.run(lambda engine: engine.reset_cache()))
    yield _ranking
    _ranking.check_idle()


@pytest.fixture(scope="session")
def llm(path: Path) -> Iterator[LLM]:
    """The same model without a server, which says what is right."""
    with LLM(path, threads=1, kv_memory_bytes=8 << 20) as llm:
        yield llm


def post(server: LiveServer, path: str, **fields: Any) -> Answer:
    return send(server.port, "POST", path, {"model": MODEL} | fields)


def results_of(answer: Answer) -> list[tuple[int, float]]:
    assert answer.status == 200, answer.body
    return [(result["index"], result["relevance_score"]) for result in answer.json["results"]]


@pytest.fixture
def expected(llm: LLM) -> list[tuple[int, float]]:
    return [(result.index, result.relevance_score) for result in llm.rerank(QUERY, DOCUMENTS).results]


@pytest.mark.parametrize("route", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_every_alias_ranks_as_the_library_does_to_the_bit(
    ranking: LiveServer, expected: list[tuple[int, float]], route: str
) -> None:
    answer = post(ranking, route, query=QUERY, documents=DOCUMENTS)

    assert results_of(answer) == expected
    assert answer.json["meta"]["warnings"] == []
    assert "document" not in answer.json["results"][0]
    objects = [{"text": text} for text in DOCUMENTS]
    top = post(ranking, route, query=QUERY, documents=objects, top_n=2, return_documents=True)
    assert results_of(top) == expected[:2]
    assert [r["document"] for r in top.json["results"]] == [objects[index] for index, _ in expected[:2]]


def test_the_account_says_that_instruction_and_query_were_read_once(ranking: LiveServer, llm: LLM) -> None:
    def counted() -> tuple[int, int]:
        answer = post(ranking, "/rerank", query=QUERY, documents=DOCUMENTS)
        usage, meta = answer.json["usage"], answer.json["meta"]
        details = usage["prompt_tokens_details"]
        assert usage["total_tokens"] == usage["prompt_tokens"] == meta["tokens"]["input_tokens"]
        assert meta["cached_tokens"] == details["cached_tokens"] == int(answer.headers["foreword-cached-tokens"])
        assert details["cache_write_tokens"] == int(answer.headers["foreword-written-tokens"])
        return usage["prompt_tokens"], details["cached_tokens"]

    opening = len(RerankPrompts(llm.rerank_format, RerankSettings(), llm.tokenizer).before(QUERY))
    total, cold = counted()

    assert cold >= (len(DOCUMENTS) - 1) * opening
    assert counted() == (total, total - len(DOCUMENTS))


def test_the_cohere_client_is_answered_to_the_field(ranking: LiveServer, expected: list[tuple[int, float]]) -> None:
    with cohere.ClientV2("none", base_url=ranking.url, max_retries=0) as client:
        answer = client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, top_n=3, max_tokens_per_doc=400)
        with pytest.raises(cohere.BadRequestError) as refused:
            client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=-1)

    assert [(result.index, result.relevance_score) for result in answer.results] == expected[:3]
    assert answer.meta is not None
    assert answer.meta.tokens is not None
    assert answer.meta.api_version is not None
    assert answer.meta.api_version.version == "2"
    assert set(refused.value.body) == {"message"}
    assert "max_tokens_per_doc" in refused.value.body["message"]
    raw = post(ranking, "/v2/rerank", query=QUERY, documents=DOCUMENTS).body
    V2RerankResponse.model_validate_json(raw, strict=True)


def test_the_async_cohere_client_and_the_older_one(ranking: LiveServer, expected: list[tuple[int, float]]) -> None:
    async def ask() -> Any:
        async with cohere.AsyncClientV2("none", base_url=ranking.url, max_retries=0) as client:
            return await asyncio.gather(
                *(client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS) for _ in range(4))
            )

    for answer in asyncio.run(ask()):
        assert [(result.index, result.relevance_score) for result in answer.results] == expected
    with cohere.Client("none", base_url=ranking.url, max_retries=0) as older:
        answer = older.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, return_documents=True)
    assert answer.results[0].document is not None
    assert answer.results[0].document.text == DOCUMENTS[expected[0][0]]


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
@pytest.mark.parametrize("route", ["/score", "/v1/score"])
def test_scores_come_in_order_by_each_of_vllms_names(
    ranking: LiveServer, llm: LLM, route: str, names: tuple[str, str]
) -> None:
    one_to_many = post(ranking, route, **{names[0]: QUERY, names[1]: DOCUMENTS})
    each = post(ranking, route, **{names[0]: TEXTS, names[1]: DOCUMENTS[:3]})
    single = post(ranking, route, **{names[0]: QUERY, names[1]: DOCUMENTS[0]})

    def scores(answer: Answer) -> list[float]:
        assert answer.status == 200, answer.body
        data = answer.json["data"]
        assert [entry["index"] for entry in data] == list(range(len(data)))
        assert {entry["object"] for entry in data} == {"score"}
        return [entry["score"] for entry in data]

    assert scores(one_to_many) == [score.score for score in llm.score(QUERY, DOCUMENTS)]
    assert scores(each) == [score.score for score in llm.score(TEXTS, DOCUMENTS[:3])]
    assert scores(single) == scores(one_to_many)[:1]
    assert one_to_many.json["id"].startswith("embd-")
    assert set(one_to_many.json["usage"]) == {"prompt_tokens", "total_tokens", "prompt_tokens_details"}


def test_instruction_template_and_labels_of_the_callers(ranking: LiveServer, llm: LLM) -> None:
    changes: dict[str, Any] = {
        "instruction": "Find the shortest",
        "template": "{instruction}: {query}\n{document}\nShort? ",
        "labels": ["no", "yes"],
    }

    answer = post(ranking, "/rerank", query=QUERY, documents=DOCUMENTS, **changes)

    wanted = llm.rerank(QUERY, DOCUMENTS, RerankSettings(**changes)).results
    assert results_of(answer) == [(result.index, result.relevance_score) for result in wanted]


def test_a_document_that_was_cut_is_told(ranking: LiveServer) -> None:
    answer = post(ranking, "/rerank", query="q", documents=["short", "long " * 2000], max_tokens_per_doc=30)

    assert answer.status == 200
    assert answer.json["meta"]["warnings"] == ["1 documents were longer than they may be and were cut: 1"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents"),
        ({"documents": [1]}, "documents[0]"),
        ({"documents": [{"text": "a", "url": "x"}]}, "documents[0].url"),
        ({"documents": "a"}, "documents"),
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"query": "word " * 5000}, "query"),
        ({"query": "x" * 1_000_000}, "query"),
        ({"top_n": -1}, "top_n"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"template": "{query}"}, "template"),
        ({"template": "x" * 9000}, "template"),
        ({"instruction": "x" * 40_000}, "instruction"),
        ({"labels": ["yes"]}, "labels"),
        ({"labels": ["relevant", "irrelevant"]}, "labels"),
        ({"rank_fields": ["text"]}, "rank_fields"),
        ({"relevant_spans": {}}, "relevant_spans"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_cannot_be_ranked_is_400_with_its_field(ranking: LiveServer, fields: dict[str, Any], param: str) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS} | fields

    openai_style, cohere_style = post(ranking, "/rerank", **body), post(ranking, "/v2/rerank", **body)

    assert openai_style.status == cohere_style.status == 400, openai_style.body
    assert openai_style.json["error"]["param"] == param
    assert set(cohere_style.json) == {"message"}
    assert param in cohere_style.json["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text_1": "a"},
        {"text_1": "a", "text_2": "b", "documents": "c"},
        {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]},
        {"text_1": "a", "text_2": []},
        {"text_1": "a", "text_2": ["a"] * (MAX_DOCUMENTS + 1)},
        {"queries": 1, "documents": 2},
    ],
)
def test_what_cannot_be_scored_is_400(ranking: LiveServer, fields: dict[str, Any]) -> None:
    answer = post(ranking, "/score", **fields)

    assert answer.status == 400, answer.body
    assert answer.json["error"]["param"]


def test_a_model_without_labels_of_one_token_says_so(server: LiveServer) -> None:
    answer = send(server.port, "POST", "/rerank", {"model": MODEL, "query": "q", "documents": ["d"]})

    assert answer.status == 400
    assert answer.json["error"]["param"] == "labels"
    assert "'True'" in answer.json["error"]["message"]


def test_more_tokens_than_may_wait_are_429_in_the_dialect(path: Path, start_server: StartServer) -> None:
    server = start_server(str(path), limits=Limits(max_queued_requests=1), kv_memory_bytes=8 << 20)
    held = server.run(_entered(server))

    answers = [post(server, route, query="q", documents=["d"]) for route in ("/rerank", "/v2/rerank")]
    embedded = post(server, "/v1/embeddings", input="a")

    server.loop.call_soon_threadsafe(held.leave)
    assert {answer.status for answer in [*answers, embedded]} == {429}
    assert all("retry-after" in answer.headers for answer in answers)
    assert answers[0].json["error"]["type"] == "rate_limit_error"
    assert set(answers[1].json) == {"message"}


async def _entered(server: LiveServer) -> Any:
    return server.service.enter()


def test_a_client_that_leaves_stops_the_rest(ranking: LiveServer) -> None:
    def computed() -> int:
        return ranking.run(ranking.service.engine.run(lambda engine: engine.stats())).computed_tokens

    before = computed()
    documents = [f"{i} " + "long " * 150 for i in range(200)]
    body = json.dumps({"model": MODEL, "query": QUERY, "documents": documents})
    connection = http.client.HTTPConnection("127.0.0.1", ranking.port, timeout=30)
    connection.request("POST", "/rerank", body, {"content-type": "application/json"})
    while computed() == before:
        threading.Event().wait(0.01)

    connection.close()
    ranking.check_idle()

    assert computed() - before < 200 * 750


def test_what_one_tenant_ranked_another_reads_anew(keyed: Keyed) -> None:
    body = {"model": MODEL, "query": "q", "documents": ["d"], "labels": ["y", "n"]}

    def cached(who: str) -> int:
        answer = send(keyed.live.port, "POST", "/rerank", body, key=keyed.keys[who])
        assert answer.status == 200, answer.body
        return int(answer.headers["foreword-cached-tokens"])

    keyed.live.run(keyed.live.service.engine.run(lambda engine: engine.reset_cache()))
    assert [cached("alice"), cached("bob")] == [0, 0]
    assert cached("alice") == cached("alice2") == cached("bob") > 0
    assert send(keyed.live.port, "POST", "/rerank", body).status == 401


def test_the_openai_client_gets_embeddings_as_floats_and_base64(ranking: LiveServer, llm: LLM) -> None:
    wanted = [output.embedding for output in llm.embed(TEXTS)]

    with openai.OpenAI(base_url=f"{ranking.url}/v1", api_key="none", max_retries=0) as client:
        packed = client.embeddings.create(model=MODEL, input=TEXTS)  # asks for base64
        plain = client.embeddings.with_raw_response.create(model=MODEL, input=TEXTS, encoding_format="float")
        ids = client.embeddings.create(model=MODEL, input=llm.embed("a text")[0].prompt_token_ids)
        short = client.embeddings.create(model=MODEL, input="a text", dimensions=8)

    floats = CreateEmbeddingResponse.model_validate_json(plain.content, strict=True)
    for answer in (packed, floats):
        assert [entry.index for entry in answer.data] == [0, 1, 2]
        assert [entry.embedding for entry in answer.data] == wanted
        assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0
    assert ids.data[0].embedding == wanted[0]
    assert short.data[0].embedding == llm.embed("a text", dimensions=8)[0].embedding
    raw = post(ranking, "/v1/embeddings", input=TEXTS, encoding_format="base64").json
    values = array("f", base64.b64decode(raw["data"][1]["embedding"]))
    assert values.tolist() == wanted[1]
    prompt = raw["usage"]["prompt_tokens"]
    assert raw["usage"]["prompt_tokens_details"] == {"cached_tokens": prompt - 3, "cache_write_tokens": 0}


def test_the_async_openai_client_gets_them_too(ranking: LiveServer, llm: LLM) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{ranking.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(client.embeddings.create(model=MODEL, input=text) for text in TEXTS))

    found = [answer.data[0].embedding for answer in asyncio.run(ask())]

    assert found == [output.embedding for output in llm.embed(TEXTS)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [100_000]}, "input"),
        ({"input": [[1], [-1]]}, "input"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": None}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 65}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_cannot_be_embedded_is_400_with_its_field(ranking: LiveServer, fields: dict[str, Any], param: str) -> None:
    answer = post(ranking, "/v1/embeddings", **({"input": "a"} | fields))

    assert answer.status == 400, answer.body
    assert answer.json["error"]["param"] == param
