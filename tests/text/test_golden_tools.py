"""Conversations with tools are rendered as `transformers` renders them, to the byte."""

import hashlib
import json

import pytest

from foreword.text.chat_template import ChatTemplate
from foreword.text.tool_formats import HERMES, LLAMA3, MISTRAL, tool_format
from tests.text.golden_strings import GOLDEN, text_digest
from tests.text.tiny import byte_level_tokenizer
from tests.text.tool_templates import TEMPLATES, golden_tool_conversations


@pytest.mark.parametrize("name", TEMPLATES)
def test_rendered_conversations_with_tools_equal_those_of_transformers(name: str) -> None:
    golden = json.loads((GOLDEN / "tools.json").read_text())
    conversations = golden_tool_conversations()
    assert text_digest(conversations) == golden["conversations"]
    assert text_digest(TEMPLATES) == golden["templates"]
    template = ChatTemplate(TEMPLATES[name], byte_level_tokenizer())

    texts = [
        template.render(messages, tools=tools, add_generation_prompt=is_asked)
        for messages, tools, is_asked in conversations
    ]

    digests = [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in texts]
    wrong = [text for text, own, theirs in zip(texts, digests, golden[name], strict=True) if own != theirs]
    assert wrong == []
    assert len(set(digests)) > len(digests) / 2


def test_each_family_is_known_by_its_template() -> None:
    assert [tool_format(source) for source in TEMPLATES.values()] == [HERMES, LLAMA3, MISTRAL]
