"""The real model behind both official clients: it knows a fact, ends a turn, and remembers a conversation."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.server.conftest import MODEL, LiveServer
from tests.smollm2 import SMOLLM2, needs_smollm2

pytestmark = needs_smollm2


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    options: dict[str, Any] = {"kv_memory_bytes": 64 << 20, "max_model_len": 1024, "threads": None}
    server = LiveServer(str(SMOLLM2), debug=False, **options)
    server.start()
    yield server
    server.check_idle()
    server.stop()


def test_openai_clients_complete_and_chat(live: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        completion = client.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0
        )
        chat = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Say only the word hello."}],
            max_tokens=60,
            temperature=0,
        )

    assert completion.choices[0].text.startswith(" Paris")
    assert chat.choices[0].finish_reason == "stop"
    assert "<|im_end|>" not in (chat.choices[0].message.content or "")


def test_an_anthropic_conversation_reads_its_past(live: LiveServer) -> None:
    turns: list[Any] = [{"role": "user", "content": "Name three rivers."}]
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0) as client:
        with client.messages.stream(
            model=MODEL, max_tokens=40, messages=turns, extra_body={"temperature": 0}
        ) as stream:
            first = stream.get_final_message()
        assert isinstance(first.content[0], anthropic.types.TextBlock)
        turns += [{"role": "assistant", "content": first.content[0].text}, {"role": "user", "content": "One more."}]
        second = client.messages.create(model=MODEL, max_tokens=4, messages=turns)

    def total(usage: anthropic.types.Usage) -> int:
        return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)

    # All that was read and said before is read again, but for the last token, which was drawn and never computed.
    assert second.usage.cache_read_input_tokens == total(first.usage) + first.usage.output_tokens - 1
