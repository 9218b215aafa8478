"""Tokens and templates over HTTP: what the model would read, without running it."""

from typing import Any

import pytest

from tests.server.conftest import MODEL, LiveServer, StartServer
from tests.server.wire import chat_body, send

MESSAGES = [{"role": "user", "content": "hi"}]


def post(live: LiveServer, path: str, **fields: Any) -> Any:
    answer = send(live.port, "POST", path, {"model": MODEL} | fields)
    assert answer.status == 200, answer.body
    return answer.json


def test_text_becomes_tokens_and_text_again(server: LiveServer) -> None:
    text = "Hello, wörld <|im_end|>!"

    found = post(server, "/tokenize", prompt=text, return_token_strs=True)

    assert found["count"] == len(found["tokens"]) == len(text.encode())
    assert found["max_model_len"] == 512
    assert found["token_strs"][:2] == ["H", "e"]
    assert found["token_strs"][text.index("ö")] == "bytes:\\xc3"
    assert post(server, "/detokenize", tokens=found["tokens"]) == {"prompt": text}


def test_messages_become_the_tokens_an_answer_counts(server: LiveServer) -> None:
    found = post(server, "/tokenize", messages=MESSAGES)
    shorter = post(server, "/tokenize", messages=MESSAGES, add_generation_prompt=False)

    usage = send(server.port, "POST", "/v1/chat/completions", chat_body("hi")).json["usage"]

    assert found["count"] == usage["prompt_tokens"]
    assert found["tokens"][: shorter["count"]] == shorter["tokens"]
    assert shorter["count"] < found["count"]


def test_the_template_is_shown_as_text(server: LiveServer) -> None:
    found = post(server, "/apply-template", messages=MESSAGES)

    assert found == {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400),
        ("/tokenize", {"prompt": "x" * 100_000}, 400),
        ("/tokenize", {"prompt": [999]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [258]}, 400),
        ("/detokenize", {"tokens": [True]}, 400),
        ("/detokenize", {"tokens": [2**40]}, 400),
        ("/apply-template", {"prompt": "a"}, 400),
        ("/apply-template", {"messages": []}, 400),
        ("/apply-template", {"messages": MESSAGES, "chat_template": "x"}, 400),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404),
    ],
)
def test_what_cannot_be_is_refused(server: LiveServer, path: str, fields: dict[str, Any], status: int) -> None:
    answer = send(server.port, "POST", path, {"model": MODEL} | fields)

    assert answer.status == status
    assert answer.json["error"]["message"]


def test_no_tokens_are_no_text(server: LiveServer) -> None:
    assert post(server, "/detokenize", tokens=[]) == {"prompt": ""}


def test_a_model_without_template_takes_prompts_only(start_server: StartServer, tiny_raw: str) -> None:
    live = start_server(tiny_raw)

    body = {"model": MODEL, "messages": MESSAGES}
    for path, more in (("/v1/chat/completions", {}), ("/v1/messages", {"max_tokens": 1}), ("/apply-template", {})):
        answer = send(live.port, "POST", path, body | more)
        assert answer.status == 400
        assert "template" in answer.body.decode()
    assert post(live, "/v1/completions", prompt="a", max_tokens=1)["choices"]
