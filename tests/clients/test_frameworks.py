"""LangChain and LiteLLM against a live server: chat, stream, tools, structured output.

An optional suite: `pip install 'foreword[clients]'`, then `pytest tests/clients` with `FOREWORD_CLIENTS_URL` naming a
running server. Without the libraries or the address it is skipped.
"""

import os
from typing import Any

import pytest

URL = os.environ.get("FOREWORD_CLIENTS_URL", "")
pytestmark = [
    pytest.mark.skipif(not URL, reason="needs FOREWORD_CLIENTS_URL, a running server"),
    pytest.mark.filterwarnings("ignore"),  # theirs
]
QUESTION = "What is the weather in Paris? Answer in one short sentence."
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PERSON: dict[str, Any] = {
    "title": "person",
    "description": "Somebody.",
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def model() -> str:
    import json
    import urllib.request

    with urllib.request.urlopen(f"{URL}/v1/models", timeout=10) as answer:
        return str(json.load(answer)["data"][0]["id"])


def chats() -> list[Any]:
    """LangChain's models of both dialects, those that are installed."""
    found: list[Any] = []
    openai = pytest.importorskip("langchain_openai")
    anthropic = pytest.importorskip("langchain_anthropic")
    common: dict[str, Any] = {"model": model(), "max_tokens": 60, "temperature": 0, "max_retries": 0}
    found.append(openai.ChatOpenAI(base_url=f"{URL}/v1", api_key="none", **common))
    found.append(anthropic.ChatAnthropic(base_url=URL, api_key="none", **common))
    return found


@pytest.fixture(params=["openai", "anthropic"])
def chat(request: pytest.FixtureRequest) -> Any:
    return chats()[["openai", "anthropic"].index(request.param)]


def test_langchain_chats_and_counts(chat: Any) -> None:
    answer = chat.invoke(QUESTION)

    assert answer.content
    assert answer.usage_metadata["input_tokens"] > 10
    assert answer.usage_metadata["output_tokens"] > 0


def test_langchain_streams_the_same(chat: Any) -> None:
    pieces = list(chat.stream(QUESTION))

    assert len(pieces) > 3
    text = "".join(piece.content if isinstance(piece.content, str) else text_of(piece.content) for piece in pieces)
    whole = chat.invoke(QUESTION).content
    assert text == (whole if isinstance(whole, str) else text_of(whole))


def text_of(content: list[dict[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in content)


def test_langchain_calls_a_tool(chat: Any) -> None:
    answer = chat.bind_tools([WEATHER], tool_choice="weather").invoke(QUESTION)

    (call,) = answer.tool_calls
    assert call["name"] == "weather"
    assert isinstance(call["args"]["city"], str)


def test_langchain_reads_structured_output(chat: Any) -> None:
    found = chat.with_structured_output(PERSON).invoke("Make up a person.")

    assert isinstance(found["name"], str)
    assert 0 <= found["age"] <= 99


def complete(**fields: Any) -> Any:
    litellm = pytest.importorskip("litellm")
    return litellm.completion(
        model=f"openai/{model()}", api_base=f"{URL}/v1", api_key="none", temperature=0, max_tokens=60, num_retries=0,
        **({"messages": [{"role": "user", "content": QUESTION}]} | fields),
    )  # fmt: skip


def test_litellm_chats_streams_and_counts() -> None:
    whole = complete()
    pieces = [piece.choices[0].delta.content or "" for piece in complete(stream=True)]

    assert "".join(pieces) == whole.choices[0].message.content
    assert whole.usage.prompt_tokens > 10


def test_litellm_calls_a_tool() -> None:
    answer = complete(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}})

    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"


def test_litellm_reads_structured_output() -> None:
    import json

    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    answer = complete(messages=[{"role": "user", "content": "Make up a person."}], response_format=schema)

    assert set(json.loads(answer.choices[0].message.content)) == {"name", "age"}


def test_litellm_speaks_anthropics_dialect_too() -> None:
    litellm = pytest.importorskip("litellm")

    answer = litellm.completion(
        model=f"anthropic/{model()}", api_base=URL, api_key="none", max_tokens=20, num_retries=0,
        messages=[{"role": "user", "content": QUESTION}],
    )  # fmt: skip

    assert answer.choices[0].message.content
