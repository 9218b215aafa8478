"""The official `openai` client against a live server; raw JSON validated strictly by the client's own types."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.server.conftest import MODEL, LiveServer
from tests.server.wire import chat_body, completion_body, send

MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]


def strictly(kind: type[BaseModel], raw: str | bytes) -> Any:
    """Raw JSON as the client's type: required fields there, types exact, no field of ours in the way."""
    return kind.model_validate_json(raw, strict=True)


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "foreword"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_answer_is_complete_to_the_field(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=6, temperature=0, logprobs=True, top_logprobs=2
    )

    answer = strictly(ChatCompletion, raw.content)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert choice.finish_reason == "length"
    assert choice.message.role == "assistant"
    assert len(choice.logprobs.content) == 6
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    assert b"".join(bytes(entry.bytes) for entry in choice.logprobs.content).decode(errors="replace") == (
        choice.message.content
    )
    usage = answer.usage
    assert usage.completion_tokens == 6
    assert usage.total_tokens == usage.prompt_tokens + 6
    assert usage.prompt_tokens_details.cached_tokens + usage.prompt_tokens_details.cache_write_tokens <= (
        usage.prompt_tokens
    )
    assert raw.headers["x-request-id"].startswith("req_")


def test_a_chat_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "seed": 7, "n": 2}
    whole = client.chat.completions.create(**fields)

    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))

    for index in (0, 1):
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices and c.choices[0].index == index)
        assert text == whole.choices[index].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 16
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == chunks[-1].usage.prompt_tokens - 1


def test_the_order_of_chat_events_is_the_documented_one(server: LiveServer) -> None:
    body = chat_body(stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=1)

    answer = send(server.port, "POST", "/v1/chat/completions", body)

    assert answer.headers["content-type"].startswith("text/event-stream")
    names, data = zip(*answer.events, strict=True)
    assert set(names) == {None}
    assert data[-1] == "[DONE]"
    chunks = [strictly(ChatCompletionChunk, part) for part in data[:-1]]
    assert len({(c.id, c.created, c.model, c.object) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-2].choices[0].delta.model_dump(exclude_none=True) == {}
    assert all("usage" in json.loads(part) for part in data[:-1])
    assert [json.loads(part)["usage"] for part in data[:-2]] == [None] * (len(chunks) - 1)
    assert sum(len(c.choices[0].logprobs.content) for c in chunks[:-1] if c.choices[0].logprobs) == 4


def test_without_include_usage_no_chunk_lacks_choices(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, stream=True))

    assert all(len(chunk.choices) == 1 for chunk in chunks)


def test_the_async_client_streams_many_answers_at_once(server: LiveServer) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"{number}"}], max_tokens=5, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            together = await asyncio.gather(*(one(client, number) for number in range(12)))
            return together, [await one(client, number) for number in range(12)]

    together, alone = asyncio.run(all_of_them())

    assert together == alone


@pytest.mark.parametrize("prompt", ["Hello", ["Hello", "World"], [72, 105], [[72, 105], [72, 105, 33]], ["only one"]])
def test_completions_take_every_shape_of_prompt(client: openai.OpenAI, prompt: Any) -> None:
    count = 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)

    raw = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=3, n=2, echo=True)

    answer = strictly(Completion, raw.content)
    assert [choice.index for choice in answer.choices] == list(range(2 * count))
    assert answer.usage.completion_tokens == 3 * 2 * count


def test_a_completion_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        **{"model": MODEL, "prompt": ["One", "Two"], "max_tokens": 6, "n": 2, "seed": 3},
        **{"echo": True, "logprobs": 2},
    }
    whole = client.completions.create(**fields)

    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))

    for index, choice in enumerate(whole.choices):
        parts = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[-1].finish_reason == choice.finish_reason
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            pieces = [entry for part in parts if part.logprobs for entry in getattr(part.logprobs, name)]
            assert pieces == getattr(choice.logprobs, name)
    assert chunks[-1].usage is not None


def test_echoed_logprobs_cover_prompt_and_answer(client: openai.OpenAI) -> None:
    prompt = [72, 105, 33, 72, 105, 33]

    for _ in range(2):  # cold, then with the prompt in the cache
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=1, logprobs=3, echo=True, temperature=0
        )
        found = answer.choices[0].logprobs
        assert found is not None
        assert found.tokens is not None
        assert found.token_logprobs is not None
        assert found.top_logprobs is not None
        assert found.text_offset is not None
        assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 7
        assert found.token_logprobs[0] is None
        assert found.top_logprobs[0] is None
        for token, value, top in zip(found.tokens[1:], found.token_logprobs[1:], found.top_logprobs[1:], strict=True):
            assert top[token] == value
            assert 3 <= len(top) <= 4


def test_echoed_logprobs_do_not_depend_on_the_cache(server: LiveServer) -> None:
    body = completion_body([[40 + i % 50 for i in range(90)]], echo=True, logprobs=5, max_tokens=1)

    cold, warm = (send(server.port, "POST", "/v1/completions", body).json["choices"] for _ in range(2))

    assert cold == warm


def test_echoed_logprobs_over_a_prefix_that_others_read_are_the_same(server: LiveServer) -> None:
    ids = [41 + i % 49 for i in range(90)]
    echoed = completion_body([ids], echo=True, logprobs=5, max_tokens=1) | {"cache_salt": "echoed"}
    plain = completion_body([ids], max_tokens=1) | {"cache_salt": "plain"}

    cold = send(server.port, "POST", "/v1/completions", echoed).json["choices"]
    for expected in (0, 89):
        usage = send(server.port, "POST", "/v1/completions", plain).json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == expected
    over = send(server.port, "POST", "/v1/completions", echoed | {"cache_salt": "plain"}).json

    assert over["choices"] == cold
    assert over["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # each row is needed, so each is computed


def test_logprobs_of_prompts_are_bounded_together(client: openai.OpenAI) -> None:
    prompts = ["a" * 200] * 128

    with pytest.raises(openai.BadRequestError, match="at most 500000 of all prompts together") as many:
        client.completions.create(model=MODEL, prompt=prompts, max_tokens=1, echo=True, logprobs=20)

    assert many.value.param == "logprobs"


def test_a_prompt_can_be_scored_without_generating(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Hi there", max_tokens=0, echo=True, logprobs=0)

    choice = answer.choices[0]
    assert choice.text == "Hi there"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert len(choice.logprobs.token_logprobs or []) == answer.usage.prompt_tokens  # type: ignore[union-attr]
    assert answer.usage.completion_tokens == 0  # type: ignore[union-attr]


def test_the_best_of_several_is_the_likeliest_a_token(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": "Once", "max_tokens": 5, "seed": 5, "logprobs": 0}
    every = client.completions.create(**fields, n=6).choices

    best = client.completions.create(**fields, best_of=6, n=1)

    def mean(choice: Any) -> float:
        values: list[float] = choice.logprobs.token_logprobs
        return sum(values) / len(values)

    assert len(best.choices) == 1
    assert best.choices[0].text == max(every, key=mean).text
    assert best.usage is not None
    assert best.usage.completion_tokens == sum(len(c.logprobs.tokens) for c in every)


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt="ab", max_tokens=12, temperature=0).choices[0].text
    stop = free[5:7]

    cut = client.completions.create(model=MODEL, prompt="ab", max_tokens=12, temperature=0, stop=[stop])

    assert cut.choices[0].text == free[: free.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, n=17)
    assert bad.value.param == "n"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-none", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 600}])
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "messages"
