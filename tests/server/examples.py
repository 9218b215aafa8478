"""Bodies that each route answers, few tokens each: what tests of all routes begin with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import write_tokenizer
from tests.factories import tiny_model_files
from tests.server.conftest import MODEL, Keyed
from tests.server.test_tools import OWN, SPECIAL

MESSAGES = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "f", "description": "Does.", "parameters": {"type": "object", "additionalProperties": False}}
CALLED = [
    *MESSAGES,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "done"},
]
CALLED_ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
]
CALLED_BLOCKS = [
    *MESSAGES,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "done"}]},
]
FORCED = "required"


def _with_model(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL} | fields


LABELS = ["Y", "N"]  # one token each, where a token is a byte
_RERANK = [
    _with_model(query="q", documents=["a", {"text": "b"}], labels=LABELS),
    _with_model(query="q", documents=["a", "b" * 600], labels=LABELS, return_documents=True, max_tokens_per_doc=9),
]
_SCORE = [
    _with_model(text_1="q", text_2=["a", "b"], labels=LABELS),
    _with_model(queries="q", items="a" * 600, labels=LABELS, max_tokens_per_doc=9),
]
_PROMPTS = [_with_model(prompt="hi"), _with_model(messages=MESSAGES), _with_model(prompt=[1, 2, 3])]

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        _with_model(messages=MESSAGES, max_tokens=3),
        _with_model(messages=MESSAGES, max_tokens=3, n=2, logprobs=True, top_logprobs=2),
        _with_model(messages=CALLED, max_tokens=3, tools=[{"type": "function", "function": FUNCTION}]),
        _with_model(
            messages=MESSAGES,
            max_tokens=200,
            tools=[{"type": "function", "function": FUNCTION}],
            tool_choice=FORCED,
            parallel_tool_calls=False,
        ),
    ],
    "/v1/completions": [
        _with_model(prompt="hi", max_tokens=3),
        _with_model(prompt=["a", "b"], max_tokens=2, echo=True, logprobs=2),
    ],
    "/v1/responses": [
        _with_model(input="hi", max_output_tokens=3),
        _with_model(
            input=CALLED_ITEMS,
            max_output_tokens=200,
            tools=[{"type": "function", **FUNCTION}],
            tool_choice=FORCED,
            parallel_tool_calls=False,
            prompt_cache_options={"comparison_response_id": "resp_0"},
        ),
        _with_model(input="hi", max_output_tokens=3, include=["message.output_text.logprobs"], top_logprobs=1),
        _with_model(input="hi", max_output_tokens=9, text={"format": {"type": "json_object"}}, metadata={"a": "b"}),
    ],
    "/v1/responses/input_tokens": [{"input": "hi"}, _with_model(input=CALLED_ITEMS, instructions="Be.")],
    "/v1/embeddings": [
        _with_model(input="hi"),
        _with_model(input=["a", "b"], encoding_format="base64", dimensions=4),
    ],
    "/v1/messages": [
        _with_model(messages=MESSAGES, max_tokens=3, diagnostics={"previous_message_id": "msg_0"}),
        _with_model(
            messages=CALLED_BLOCKS,
            max_tokens=200,
            tools=[{"name": "f", "input_schema": FUNCTION["parameters"]}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            system=[{"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral"}}],
        ),
    ],
    "/v1/messages/count_tokens": [_with_model(messages=MESSAGES)],
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _RERANK),
    **dict.fromkeys(("/score", "/v1/score"), _SCORE),
    "/tokenize": [*_PROMPTS, _with_model(prompt="hi", return_token_strs=True)],
    "/detokenize": [_with_model(tokens=[72, 105])],
    "/apply-template": [_with_model(messages=MESSAGES)],
    **dict.fromkeys(("/cache/warm", "/cache/query", "/cache/explain"), _PROMPTS),
    "/cache/reset": [{}],
}


@pytest.fixture(scope="module")
def handy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """A server with keys, whose model is tiny and random, calls tools and has room for what they are told by."""
    folder = tiny_model_files(tmp_path_factory.mktemp("handy"), vocab_size=256 + len(SPECIAL), max_position=2048)
    write_tokenizer(folder, SPECIAL)
    Path(folder, "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[1], "chat_template": OWN}))
    keyed = Keyed(str(folder), tmp_path_factory.mktemp("keys"))
    keyed.live.start()
    yield keyed
    keyed.live.check_idle()
    keyed.live.stop()
