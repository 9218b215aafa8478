"""What is made of readings: scores of relevance, and embeddings."""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence

from foreword.core.errors import InvalidRequestError
from foreword.core.probe import Probe, Reading
from foreword.core.sequence import Usage
from foreword.llm.outputs import EmbeddingOutput, RequestOutput, RerankOutput, RerankResult, ScoreOutput
from foreword.text.rerank_prompt import RerankPrompts

Read = Callable[[Sequence[object], Probe], list[RequestOutput]]
"""Reads every prompt to its end, in one batch, and gives what the probe found."""

EMBEDDING = Probe(hidden_state=True)


def relevance(reading: Reading) -> float:
    """`p(first) / (p(first) + p(second))` of a probe of two tokens."""
    first, second = reading.logprobs
    odds = math.exp(-abs(first - second))
    return 1 / (1 + odds) if first >= second else odds / (1 + odds)


def embedding(reading: Reading, dimensions: int | None = None) -> "array[float]":
    """The hidden state, or its first `dimensions` values, at length one, f32.

    The sum of squares is exact before it is rounded, so equal states give equal bits on any machine.
    """
    assert reading.hidden_state is not None
    values = reading.hidden_state[:dimensions]
    norm = math.sqrt(math.fsum(value * value for value in values)) or 1.0
    return array("f", [value / norm for value in values])


def check_dimensions(dimensions: int | None, hidden_size: int) -> None:
    """Refuse a number of dimensions the model does not have.

    Raises:
        InvalidRequestError: it is none from 1 to `hidden_size`.
    """
    if dimensions is None:
        return
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= hidden_size:
        raise InvalidRequestError("dimensions", f"an integer from 1 to {hidden_size}", dimensions)


def embed(read: Read, prompts: Sequence[object], dimensions: int | None) -> list[EmbeddingOutput]:
    """One vector a prompt, in order."""
    outputs = read(prompts, EMBEDDING)
    return [EmbeddingOutput(embedding(_reading(o), dimensions).tolist(), o.prompt_token_ids, o.usage) for o in outputs]


def score(read: Read, prompts: RerankPrompts, pairs: Iterable[tuple[str, str]], room: int) -> list[ScoreOutput]:
    """How well each pair's document answers its query, in order.

    Raises:
        InvalidRequestError: a query or a document can't be put into a prompt.
    """
    before: dict[str, list[int]] = {}
    made = []
    for query, document in pairs:
        if not isinstance(query, str) or query not in before:
            before[query] = prompts.before(query)
        made.append(prompts.prompt(before[query], document, room))
    outputs = read([{"prompt_token_ids": ids} for ids, _ in made], Probe(token_ids=prompts.label_ids))
    return [
        ScoreOutput(relevance(_reading(output)), output.usage, is_cut)
        for output, (_, is_cut) in zip(outputs, made, strict=True)
    ]


def ranked(scores: Sequence[ScoreOutput], top_n: int | None) -> RerankOutput:
    """The `top_n` best of a query's documents; all of them where it is None or 0.

    Raises:
        InvalidRequestError: `top_n` is no number of documents.
    """
    if top_n is not None and (isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 0):
        raise InvalidRequestError("top_n", "an integer of at least 0", top_n)
    order = sorted(range(len(scores)), key=lambda index: (-scores[index].score, index))
    return RerankOutput(
        [RerankResult(index, scores[index].score) for index in order[: top_n or len(scores)]],
        total_usage(score.usage for score in scores),
        [index for index, score in enumerate(scores) if score.is_cut],
    )


def total_usage(usages: Iterable[Usage]) -> Usage:
    """The account of a few prompts together."""
    total = Usage()
    for usage in usages:
        total.prompt_tokens += usage.prompt_tokens
        total.cached_tokens += usage.cached_tokens
        total.written_tokens += usage.written_tokens
        total.computed_tokens += usage.computed_tokens
        total.recomputed_tokens += usage.recomputed_tokens
    return total


def as_pairs(queries: object, documents: object) -> list[tuple[str, str]]:
    """One query with every document, or each query with its own.

    Raises:
        InvalidRequestError: neither one query, nor as many as there are documents; or no document at all.
    """
    first, second = _as_texts("text_1", queries), _as_texts("text_2", documents)
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise InvalidRequestError("text_1", f"one text, or as many as text_2 has ({len(second)})", len(first))
    return list(zip(first, second, strict=True))


def _as_texts(name: str, value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(name, "a text, or a list of them", value)
    return list(texts)


def _reading(output: RequestOutput) -> Reading:
    assert output.reading is not None
    return output.reading
