"""`LLM.score`, `.rerank` and `.embed`: the model's own probabilities and states, in any company."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.rerank_model import rerank_model
from tests.oracles.sequential_generate import sequential_logits

from foreword import LLM, InvalidRequestError, RerankSettings, SamplingParams
from foreword.core.probe import Reading
from foreword.llm.readings import relevance
from foreword.models.registry import load_model
from foreword.ops.cpu import CpuBackend
from foreword.text.rerank_prompt import RerankPrompts

QUERY = "which river is longest"
DOCUMENTS = [f"the river number {i} is {i * 37 % 11} miles long, in the land of {'x' * (i % 5)}" for i in range(12)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rerank_model(tmp_path_factory.mktemp("rerank"))


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    with open_llm(path) as llm:
        yield llm
        assert llm.stats().held_blocks == 0


def open_llm(path: Path, **options: Any) -> LLM:
    return LLM(path, **({"threads": 1, "kv_memory_bytes": 8 << 20, "debug": True} | options))


def prompts_of(llm: LLM, settings: RerankSettings | None = None) -> RerankPrompts:
    return RerankPrompts(llm.rerank_format, settings or RerankSettings(), llm.tokenizer)


def test_a_score_is_the_first_labels_share_of_the_models_own_probabilities(llm: LLM, path: Path) -> None:
    model = load_model(path, CpuBackend(num_threads=1), weight_dtype="auto")
    prompts = prompts_of(llm)
    first, second = prompts.label_ids

    scores = llm.score(QUERY, DOCUMENTS)

    for score, document in zip(scores, DOCUMENTS, strict=True):
        ids, _ = prompts.prompt(prompts.before(QUERY), document, 1000)
        last = sequential_logits(model, ids, kv_dtype="int16")[-1].astype(np.float64)
        p = np.exp(last - last.max())
        assert score.score == pytest.approx(p[first] / (p[first] + p[second]), abs=1e-6)


def test_the_best_come_first_with_their_places(llm: LLM) -> None:
    scores = [score.score for score in llm.score(QUERY, DOCUMENTS)]

    output = llm.rerank(QUERY, DOCUMENTS)

    assert [result.relevance_score for result in output.results] == sorted(scores, reverse=True)
    assert [scores[result.index] for result in output.results] == sorted(scores, reverse=True)
    assert sorted(result.index for result in output.results) == list(range(len(DOCUMENTS)))
    assert llm.rerank(QUERY, DOCUMENTS, top_n=3).results == output.results[:3]
    assert llm.rerank(QUERY, DOCUMENTS, top_n=0).results == output.results
    assert llm.rerank(QUERY, DOCUMENTS, top_n=99).results == output.results


def test_equal_documents_keep_the_order_given(llm: LLM) -> None:
    output = llm.rerank(QUERY, ["same", "same", "same"])

    assert [result.index for result in output.results] == [0, 1, 2]
    assert len({result.relevance_score for result in output.results}) == 1


def test_instruction_and_query_are_read_once(llm: LLM) -> None:
    prompts = prompts_of(llm)
    before = prompts.before(QUERY)
    lengths = [len(prompts.prompt(before, document, 1000)[0]) for document in DOCUMENTS]

    usage = llm.rerank(QUERY, DOCUMENTS).usage

    assert usage.prompt_tokens == sum(lengths)
    assert usage.computed_tokens <= len(before) + sum(length - len(before) for length in lengths)
    assert usage.cached_tokens >= (len(DOCUMENTS) - 1) * len(before)
    assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens
    assert usage.completion_tokens == 0


@pytest.mark.parametrize(
    "options",
    [
        {"prefix_cache": "none"},
        {"prefix_cache": "hash"},
        {"token_budget": 7},
        {"max_num_seqs": 1},
        {"block_size": 8},
        {"kv_cache": False, "token_budget": 64},
        {"kv_memory_bytes": 600_000, "max_model_len": 256},
        {"threads": 2},
    ],
    ids=str,
)
def test_scores_and_embeddings_have_the_same_bits_however_they_are_computed(
    path: Path, options: dict[str, Any]
) -> None:
    with open_llm(path) as first, open_llm(path, **options) as second:
        expected = [score.score for score in first.score(QUERY, DOCUMENTS)]
        vectors = [output.embedding for output in first.embed(DOCUMENTS)]

        for _ in range(2):  # cold, then warm where there is a cache
            assert [score.score for score in second.score(QUERY, DOCUMENTS)] == expected
            assert [output.embedding for output in second.embed(DOCUMENTS)] == vectors
        assert [second.score(QUERY, document)[0].score for document in reversed(DOCUMENTS)] == expected[::-1]
        assert [second.embed(document)[0].embedding for document in reversed(DOCUMENTS)] == vectors[::-1]


def test_other_labels_other_words_other_scores(llm: LLM) -> None:
    default = llm.score(QUERY, DOCUMENTS[0])[0].score

    swapped = llm.score(QUERY, DOCUMENTS[0], RerankSettings(labels=["False", "True"]))[0].score
    other = llm.score(QUERY, DOCUMENTS[0], RerankSettings(instruction="Find the shortest"))[0].score

    assert swapped == pytest.approx(1 - default, abs=1e-12)
    assert other != default
    with pytest.raises(InvalidRequestError, match="one token"):
        llm.score(QUERY, DOCUMENTS[0], RerankSettings(labels=["good", "bad"]))


def test_pairs_are_one_with_many_or_each_with_its_own(llm: LLM) -> None:
    queries = ["first", "second"]
    each = llm.score(queries, DOCUMENTS[:2])

    assert [score.score for score in each] == [
        llm.score(query, document)[0].score for query, document in zip(queries, DOCUMENTS[:2], strict=True)
    ]
    for wrong in (["a", "b", "c"], [], [1], 3):
        with pytest.raises(InvalidRequestError, match="text_1"):
            llm.score(wrong, DOCUMENTS[:2])
    with pytest.raises(InvalidRequestError, match="text_2"):
        llm.score("q", [])
    with pytest.raises(InvalidRequestError, match="top_n"):
        llm.rerank("q", ["d"], top_n=-1)
    with pytest.raises(InvalidRequestError, match="query"):
        llm.rerank("", ["d"])


def test_documents_that_were_cut_are_named(llm: LLM) -> None:
    output = llm.rerank("q", ["short", "long " * 300, "short too"], RerankSettings(max_tokens_per_doc=20))

    assert output.cut_documents == [1]


def test_a_score_near_one_or_zero_does_not_overflow() -> None:
    assert relevance(Reading(logprobs=(0.0, -2000.0))) == 1.0
    assert relevance(Reading(logprobs=(-2000.0, 0.0))) == 0.0
    assert relevance(Reading(logprobs=(-3.0, -3.0))) == 0.5


def test_an_embedding_has_length_one_and_can_be_shortened(llm: LLM) -> None:
    whole = llm.embed("a text")[0]
    short = llm.embed("a text", dimensions=8)[0].embedding

    assert len(whole.embedding) == 64
    assert math.fsum(v * v for v in whole.embedding) == pytest.approx(1, abs=1e-6)
    norm = math.sqrt(math.fsum(v * v for v in whole.embedding[:8]))
    assert short == pytest.approx([v / norm for v in whole.embedding[:8]], abs=1e-6)
    assert whole.usage.prompt_tokens == len(whole.prompt_token_ids) > 1
    for wrong in (0, 65, True, 1.5):
        with pytest.raises(InvalidRequestError, match="dimensions"):
            llm.embed("a", dimensions=wrong)  # type: ignore[arg-type]


def test_reading_disturbs_no_stream_that_is_open(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = llm.generate("a story", params)[0].outputs[0].token_ids
    stream = llm.stream("a story", params)
    first = next(stream)

    scores = llm.score(QUERY, DOCUMENTS[:3])

    rest = [token for delta in stream for token in delta.token_ids]
    assert [*first.token_ids, *rest] == expected
    assert len(scores) == 3
