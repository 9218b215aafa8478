"""Chat templates: what they may use, what they are given, and which tokens come out."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import InvalidRequestError, ModelFormatError
from foreword.text.chat_template import CHATML, ChatTemplate
from foreword.text.tokenizer import Tokenizer
from tests.text.tiny import byte_level_metadata, byte_level_tokenizer, sentencepiece_tokenizer, write_json

TOKENIZER = byte_level_tokenizer()
USER = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, Any]] = USER, **kwargs: Any) -> str:
    return ChatTemplate(source, TOKENIZER, clock=lambda: datetime(2024, 11, 30)).render(messages, **kwargs)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].content }}|{{ messages[0]['role'] }}", "hello|user"),
        ("{{ bos_token }}{{ eos_token }}{{ unk_token }}", "<|endoftext|><|im_end|>"),
        ("{{ strftime_now('%d %b %Y') }}", "30 Nov 2024"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02345678"),
        ("{% for i in range(9) %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}", "0123"),
        ("{% if true %}\n  {% set x = 1 %}\nx{% endif %}\n", "x"),
        ("{% set n = namespace(x=1) %}{% for m in messages %}{% set n.x = 2 %}{% endfor %}{{ n.x }}", "2"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hello"),
        ("{{ {'b': '<é>', 'a': [1, 2.5, none]} | tojson }}", '{"b": "<é>", "a": [1, 2.5, null]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{{ messages | map(attribute='role') | list }}", "['user']"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ (messages | first).content | upper ~ '!' }}{{ 3 * 'ab' }}{{ 7 % 4 }}{{ 2 ** 5 }}", "HELLO!ababab332"),
        ("{{ messages[0].content.split('l')[0] }}{{ messages[0].content[1:3] }}{{ messages[::-1] | length }}", "heel1"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a1True"),
        ("{% macro f(x, y=2) %}{{ x + y }}{% endmacro %}{{ f(1) }}{{ f(1, y=1) }}", "32"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x | trim }}{{ x is string }}{{ nothing is defined }}", "a1TrueFalse"),
        ("{{ messages[0].get('name', 'nobody') }}{{ tools is none }}{{ add_generation_prompt }}", "nobodyTrueTrue"),
        ("{{ 'b' if messages[0].role != 'user' else 'c' }}{{ [1, 2] + [3] }}{{ '5' | int + 1 }}", "c[1, 2, 3]6"),
        ("{{ '\n'.join(['a', 'b']) | indent(2) }}", "a\n  b"),
        ("{% filter upper %}a{% endfilter %}{{ joiner(', ')() }}{{ dict(a=1) }}", "A{'a': 1}"),
    ],
)
def test_templates_have_what_those_of_transformers_have(source: str, expected: str) -> None:
    assert render(source) == expected


def test_further_arguments_are_variables() -> None:
    assert (
        render("{{ enable_thinking }}{{ documents[0].text }}", enable_thinking=False, documents=[{"text": "d"}])
        == "Falsed"
    )


@pytest.mark.parametrize(
    "name", ["messages", "bos_token", "tokenize", "chat_template", "range", "_x", "__class__", "a-b"]
)
def test_reserved_names_are_refused_as_arguments(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate("x", TOKENIZER)._variables(USER, None, True, {name: 1})


def test_a_template_can_refuse_a_conversation() -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages: .*'roles must alternate'"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    ("field", "messages"),
    [
        ("messages", []),
        ("messages", None),
        ("messages", "hello"),
        ("messages", {"role": "user", "content": "x"}),
        ("messages[0]", ["hello"]),
        ("messages[0].role", [{"content": "x"}]),
        ("messages[0].role", [{"role": "<|im_end|>", "content": "x"}]),
        ("messages[0].role", [{"role": ["user"], "content": "x"}]),
        ("messages[1].content", [*USER, {"role": "user"}]),
        ("messages[0].content", [{"role": "user", "content": None}]),
        ("messages[0].content", [{"role": "user", "content": 5}]),
        ("messages[0].content[0]", [{"role": "user", "content": ["x"]}]),
        (
            "messages[0].content[1]",
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}],
        ),
        ("messages[0].content[0]", [{"role": "user", "content": [{"type": "text", "text": 1}]}]),
        ("messages[0]", [{"role": "user", "content": "x", "name": object()}]),
        ("messages[0]", [{"role": "user", "content": "x", "extra": {1: 2}}]),
        ("messages[0]", [{"role": "user", "content": "x", "extra": {1, 2}}]),
    ],
)
def test_malformed_messages_are_refused(field: str, messages: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(CHATML, messages)

    assert caught.value.field == field


def test_values_without_end_are_refused() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless

    with pytest.raises(InvalidRequestError, match="nested"):
        render(CHATML, [{"role": "user", "content": "x", "extra": endless}])
    with pytest.raises(InvalidRequestError, match="tools"):
        render(CHATML, tools=[endless])


def test_text_parts_are_joined_and_missing_fields_left_out() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": parts, "name": None},
        {"role": "assistant", "content": None},
    ]

    assert (
        render("{% for m in messages %}{{ m }}{% endfor %}", messages)
        == "{'role': 'user', 'content': 'a\\nb'}{'role': 'assistant'}"
    )


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": None}]

    render(CHATML, messages)

    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": None}]


def test_a_model_without_a_template_gets_chatml_if_its_vocabulary_is_made_for_it() -> None:
    template = ChatTemplate.from_gguf(byte_level_metadata(), TOKENIZER)

    assert template.render(USER) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_without_a_template_and_without_chatml_tokens_cannot_chat() -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"][1] = "<|other|>"

    with pytest.raises(InvalidRequestError, match="plain prompts only"):
        ChatTemplate.from_gguf(metadata, Tokenizer.from_gguf(metadata))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, CHATML),
        ({"tokenizer_config.json": {"chat_template": "one"}}, "one"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "two"}]}}, "two"),
        ({"tokenizer_config.json": {"chat_template": "one"}, "chat_template.jinja": "three"}, "three"),
    ],
)
def test_a_folder_holds_its_template_in_one_of_two_files(tmp_path: Path, files: dict[str, Any], expected: str) -> None:
    for name, document in files.items():
        write_json(tmp_path, document, name)

    assert ChatTemplate.from_folder(tmp_path, TOKENIZER).source == expected


def test_a_folder_with_a_malformed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")

    with pytest.raises(ModelFormatError, match=r"chat_template\.jinja"):
        ChatTemplate.from_folder(tmp_path, TOKENIZER)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, sentencepiece_tokenizer()], ids=["byte-level", "sentencepiece"])
@given(
    contents=st.lists(
        st.text(max_size=12) | st.sampled_from(["a < b", "x|y", "<", "", " hello "]), min_size=1, max_size=4
    )
)
def test_ids_are_those_of_the_rendered_text(tokenizer: Tokenizer, contents: list[str]) -> None:
    template = ChatTemplate(CHATML, tokenizer)
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]

    expected = tokenizer.encode(template.render(messages), add_special_tokens=False, parse_special=True)

    assert template.encode(messages) == expected
