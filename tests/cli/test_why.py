"""`foreword why`: the token, the message, the cause and the cost, from a running server and from a log alike."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.server.conftest import MODEL, Keyed, LiveServer
from tests.server.conftest import _shared_keyed as _shared_keyed
from tests.server.conftest import _shared_server as _shared_server
from tests.server.conftest import keyed as keyed
from tests.server.conftest import server as server
from tests.server.wire import send

SYSTEM = "You answer questions about the tides with great care. "
QUESTIONS = ("When is high water at noon?", "When is high tide at noon?")


def openai(question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "max_tokens": 2} | fields


def anthropic(question: str) -> dict[str, Any]:
    blocks = [{"type": "text", "text": question, "cache_control": {"type": "ephemeral"}}]
    return {"model": MODEL, "system": SYSTEM, "messages": [{"role": "user", "content": blocks}], "max_tokens": 2}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(*bodies: Any) -> str:
        path = tmp_path / "request.jsonl"
        path.write_text("\n".join(body if isinstance(body, str) else json.dumps(body) for body in bodies))
        return str(path)

    return write


def reset(keyed: Keyed) -> None:
    assert send(keyed.live.port, "POST", "/cache/reset", {}, key=keyed.keys["ops"]).status == 200


@pytest.mark.parametrize("form", [openai, anthropic])
def test_a_server_names_the_token_the_message_and_the_cost(run: Run, keyed: Keyed, written: Any, form: Any) -> None:
    reset(keyed)
    first = openai(QUESTIONS[0])
    assert send(keyed.live.port, "POST", "/v1/chat/completions", first, key=keyed.keys["bob"]).status == 200
    command = ("why", written(form(QUESTIONS[1])), "--url", keyed.live.url, "--key", keyed.keys["bob"])

    found, shown = run(*command, "--json").json, run(*command)

    assert (found["cause"], found["message_index"]) == ("changed", 1)
    assert (found["wanted"], found["stored"]) == ("t", "w")
    assert str(found["before"]).endswith("When is high ")
    assert found["missed_tokens"] == int(str(found["prompt_tokens"])) - 1 - int(str(found["matched_tokens"]))
    assert isinstance(found["missed_s"], float)
    assert shown.code == 0
    assert "▸t◂" in shown.out
    assert "stored: w" in shown.out


def test_a_log_tells_the_same_as_a_server(run: Run, keyed: Keyed, written: Any, tiny: str) -> None:
    reset(keyed)
    log = [openai(QUESTIONS[0]), {"custom_id": "2", "body": anthropic(QUESTIONS[1])}, openai(QUESTIONS[0])]
    told = []
    for body in log:
        single = body.get("body", body)
        asked = run("why", written(single), "--url", keyed.live.url, "--key", keyed.keys["alice"], "--json").json
        told.append({name: value for name, value in asked.items() if name not in ("missed_s", "line")})
        warm = openai(QUESTIONS[1] if body is log[1] else QUESTIONS[0])
        prompt = {"model": MODEL, "messages": warm["messages"]}
        assert send(keyed.live.port, "POST", "/cache/warm", prompt, key=keyed.keys["alice"]).status == 200

    report = run("why", "--log", written(*log), "--model", tiny, "--json").json

    requests = report["requests"]
    assert isinstance(requests, list)
    assert [{n: v for n, v in r.items() if n not in ("missed_s", "line")} for r in requests] == told
    assert [r["line"] for r in requests] == [1, 2, 3]
    assert [r["cause"] for r in requests] == ["never seen", "changed", "none"]


def test_the_misses_of_a_log_are_shown_dearest_first_within_bounds(run: Run, written: Any, tiny: str) -> None:
    log = written(*[{"prompt": f"prompt {number} of its own kind, and so on"} for number in range(5)])

    ran = run("why", "--log", log, "-m", tiny, "--show", "2")

    assert ran.code == 0
    assert ran.out.count("computed again") == 2
    assert "5 requests" in ran.out.splitlines()[-1]


def test_a_plain_prompt_may_be_piped_in(run: Run, server: LiveServer) -> None:
    ran = run("why", "-", "--url", server.url, "--json", stdin="A prompt nobody has sent before: zq.\n")

    assert ran.code == 0, ran.err
    assert ran.json["prompt_tokens"] == len("A prompt nobody has sent before: zq.")


def responses(question: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": question}]
    return {"model": MODEL, "instructions": SYSTEM, "input": [{"role": "user", "content": content}]}


def test_every_dialect_of_a_log_makes_the_same_prompt(run: Run, written: Any, tiny: str) -> None:
    log = written(*[form(QUESTIONS[0]) for form in (openai, anthropic, responses)])

    requests = run("why", "--log", log, "-m", tiny, "--json").json["requests"]

    assert isinstance(requests, list)
    assert [r["cause"] for r in requests] == ["never seen", "none", "none"]


@pytest.mark.parametrize("text", ['{"messages": [', '{\n  "prompt": "x",\n}', "{"])
def test_a_body_that_is_cut_off_is_no_prompt(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "body.json").write_text(text)

    ran = run("why", str(tmp_path / "body.json"), "--url", "http://127.0.0.1:1")

    assert ran.code == 2
    assert "body.json: not JSON at line " in ran.err


def test_an_address_may_end_as_clients_want_it(run: Run, server: LiveServer) -> None:
    ran = run("why", "-", "--url", f"{server.url}/v1", "--json", stdin="Another prompt.")

    assert ran.code == 0, ran.err


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{}"], "line 1: prompt: expected messages, or a prompt"),
        (['{"prompt": "x"}', "not json"], "line 2: expected a JSON object"),
        (['{"messages": []}'], "line 1: messages: expected a list of messages"),
        (['{"messages": [{"role": 1}]}'], "line 1: messages[0]: expected an object"),
        (['{"messages": [{"role": "user", "content": [{"type": "image"}]}]}'], "text, or blocks of text"),
        (['{"messages": [{"role": "user", "content": "x"}], "tools": 7}'], "line 1: tools: expected a list"),
        (['{"prompt": [99999]}'], "token ids from 0 to"),
        (["[" * 100_000], "line 1: expected a JSON object"),
        (['{"input": 3}'], "line 1: Expected"),
        (['{"input": "x", "previous_response_id": "r"}'], "line 1: previous_response_id: what came before"),
        (['{"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]}'], "line 1: input[0].call_id"),
    ],
)
def test_a_log_that_is_none_is_refused_by_line(run: Run, written: Any, tiny: str, lines: list[str], told: str) -> None:
    ran = run("why", "--log", written(*lines), "-m", tiny)

    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert told in ran.err


@pytest.mark.parametrize(
    "argv", [(), ("--url", "http://127.0.0.1:1"), ("x", "--log", "y"), ("--url", "u", "--log", "y")]
)
def test_what_cannot_be_meant_is_refused(run: Run, argv: tuple[str, ...]) -> None:
    ran = run("why", *argv)

    assert ran.code == 2
    assert ran.err.startswith("foreword: why: ")
