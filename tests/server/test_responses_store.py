"""Stored responses: bounded in bytes, number and time, each tenant's own, gone when deleted."""

import json
from typing import Any

import pytest

from foreword.server.errors import ApiError
from foreword.server.limits import MAX_ITEMS, Limits
from foreword.server.openai.responses_store import ResponseStore, StoredResponse, conversation
from foreword.server.tenant_store import ENTRY_OVERHEAD, TenantStore
from tests.server.conftest import Keyed, LiveServer, StartServer
from tests.server.test_response_cache import Clock
from tests.server.wire import Answer, response_body, send

ITEM = b'{"type":"message","role":"user","content":"hi"}'


def kept(previous: str | None, size: int = 0) -> StoredResponse:
    return StoredResponse(previous, b"[" + ITEM + b"]", b'{"output":[' + ITEM + b'],"x":"' + b"x" * size + b'"}')


def test_a_chain_is_the_whole_conversation_in_its_order() -> None:
    store = ResponseStore(TenantStore(1 << 20, 60))
    for number in range(5):
        store.keep(b"a", f"r{number}", kept(f"r{number - 1}" if number else None))

    assert [stored.previous_id for stored in store.chain(b"a", "r4")] == [None, "r0", "r1", "r2", "r3"]
    assert len(conversation(store.chain(b"a", "r4"))) == 10
    assert store.chain(b"a", None) == []


@pytest.mark.parametrize("gone", ["r0", "r1", "r2"])
def test_what_is_deleted_ends_the_chains_through_it(gone: str) -> None:
    store = ResponseStore(TenantStore(1 << 20, 60))
    for number in range(3):
        store.keep(b"a", f"r{number}", kept(f"r{number - 1}" if number else None))

    store.delete(b"a", gone)

    with pytest.raises(ApiError) as refused:
        store.chain(b"a", "r2")
    assert (refused.value.status, refused.value.code) == (400, "previous_response_not_found")
    for again in (store.delete, store.find):
        with pytest.raises(ApiError) as missing:
            again(b"a", gone)
        assert missing.value.status == 404


def test_a_response_lives_its_time_and_goes_with_the_next_stored_later() -> None:
    clock = Clock()
    records = TenantStore(1 << 20, 100, clock=clock)
    store = ResponseStore(records)
    store.keep(b"a", "old", kept(None))

    clock.now += 99
    store.find(b"a", "old")
    clock.now += 1
    store.keep(b"b", "new", kept(None))

    assert records.num_entries == 1
    with pytest.raises(ApiError):
        store.find(b"a", "old")


def test_branches_go_before_what_they_share() -> None:
    size = 1000
    records = TenantStore(4 * (size + 300 + ENTRY_OVERHEAD), 60)
    store = ResponseStore(records)
    store.keep(b"a", "root", kept(None, size))
    for number in range(20):
        store.chain(b"a", "root")
        store.keep(b"a", f"branch{number}", kept("root", size))

    assert len(store.chain(b"a", "branch19")) == 2
    assert records.num_entries == 4


def test_a_greedy_tenant_pushes_out_its_own() -> None:
    records = TenantStore(50_000, 60)
    store = ResponseStore(records)
    store.keep(b"calm", "kept", kept(None))

    for number in range(200):
        store.keep(b"greedy", f"r{number}", kept(None, 1000))

    assert store.find(b"calm", "kept").previous_id is None
    assert records.num_bytes <= 50_000


def test_a_conversation_of_too_many_items_is_refused() -> None:
    items = b"[" + b",".join([ITEM] * MAX_ITEMS) + b"]"

    with pytest.raises(ApiError) as refused:
        conversation([StoredResponse(None, items, b'{"output":[' + ITEM + b"]}")])

    assert (refused.value.status, refused.value.param) == (400, "previous_response_id")


def test_another_tenants_response_is_not_there(keyed: Keyed) -> None:
    port, keys = keyed.live.port, keyed.keys
    made = send(port, "POST", "/v1/responses", response_body("a secret"), key=keys["alice"]).json["id"]
    path = f"/v1/responses/{made}"

    def tried(who: str, response_id: str) -> list[tuple[int, Any]]:
        path = f"/v1/responses/{response_id}"
        body = response_body("go on", previous_response_id=response_id)
        compared = response_body("x", prompt_cache_options={"comparison_response_id": response_id})
        answers = [
            send(port, "GET", path, key=keys[who]),
            send(port, "GET", f"{path}/input_items", key=keys[who]),
            send(port, "DELETE", path, key=keys[who]),
            send(port, "POST", "/v1/responses", body, key=keys[who]),
        ]
        found = send(port, "POST", "/v1/responses", compared, key=keys[who]).json["prompt_cache_diagnostics"]
        return [*((answer.status, answer.json) for answer in answers), (0, found)]

    for other in ("bob", "ops"):
        assert tried(other, made) == tried(other, "resp_none")
        assert [status for status, _ in tried(other, made)] == [404, 404, 404, 400, 0]
    assert send(port, "GET", path).status == 401
    assert send(port, "GET", path, key=keys["alice2"]).status == 200  # the same tenant by another key
    assert send(port, "DELETE", path, key=keys["alice2"]).status == 200
    assert send(port, "GET", path, key=keys["alice"]).status == 404


def test_a_server_that_stores_nothing_says_so(start_server: StartServer) -> None:
    live = start_server(limits=Limits(response_store_bytes=0))

    made = send(live.port, "POST", "/v1/responses", response_body(store=True)).json

    assert made["store"] is False
    assert send(live.port, "GET", f"/v1/responses/{made['id']}").status == 404


def test_an_answer_that_failed_or_was_left_is_not_stored(start_server: StartServer) -> None:
    live = start_server()
    runner = live.service.loaded.engine._runner
    execute, steps = runner.execute, []

    def failing(*args: Any) -> Any:
        steps.append(1)
        if len(steps) == 3:
            raise RuntimeError("injected")
        return execute(*args)

    runner.execute = failing  # type: ignore[method-assign, assignment]
    failed = send(live.port, "POST", "/v1/responses", response_body(stream=True, max_output_tokens=30))
    runner.execute = execute  # type: ignore[method-assign]

    assert failed.events[-1][0] == "response.failed"
    assert live.service.stored_responses.num_entries == 0
    send(live.port, "POST", "/v1/responses", response_body(stream=True))
    assert live.service.stored_responses.num_entries == 1


def test_an_answer_given_again_is_a_response_of_its_own(start_server: StartServer) -> None:
    live = start_server(limits=Limits(response_cache_bytes=1 << 20))

    first, second = (send(live.port, "POST", "/v1/responses", response_body(metadata={"n": n})) for n in ("1", "2"))
    streamed = send(live.port, "POST", "/v1/responses", response_body(stream=True, store=False))

    last = json.loads(streamed.events[-1][1])["response"]
    marks = [answer.headers["foreword-response-cache"] for answer in (first, second, streamed)]
    assert marks == ["miss", "hit", "hit"]
    assert first.json["output"][0]["content"] == second.json["output"][0]["content"] == last["output"][0]["content"]
    assert second.json["usage"]["response_cache"] == last["usage"]["response_cache"] == "hit"
    assert second.json["metadata"] == {"n": "2"}
    assert len({first.json["id"], second.json["id"], last["id"]}) == 3
    assert send(live.port, "GET", f"/v1/responses/{second.json['id']}").json == second.json
    more = response_body("more", previous_response_id=second.json["id"])
    assert send(live.port, "POST", "/v1/responses", more).json["usage"]["input_tokens_details"]["cached_tokens"] > 20


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=1e3", "limit"),
        ("limit=%D9%A1", "limit"),
        ("order=up", "order"),
        ("after=msg_none", "after"),
    ],
)
def test_a_page_that_cannot_be_is_400(server: LiveServer, query: str, param: str) -> None:
    made = send(server.port, "POST", "/v1/responses", response_body()).json["id"]

    answer = send(server.port, "GET", f"/v1/responses/{made}/input_items?{query}")

    assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_a_stored_response_is_not_streamed_again(server: LiveServer) -> None:
    made = send(server.port, "POST", "/v1/responses", response_body()).json["id"]

    answer = send(server.port, "GET", f"/v1/responses/{made}?stream=true")

    assert (answer.status, answer.json["error"]["param"]) == (400, "stream")


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "x"}
FUNCTION = {"type": "function", "name": "f"}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 1}, "input"),
    ({"input": [1]}, "input[0]"),
    ({"input": [{}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "reasoning", "id": "rs", "summary": []}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg"}]}, "input[0].type"),
    ({"input": [user([])]}, "input[0].content"),
    ({"input": [user([{"type": "text", "text": "x"}])]}, "input[0].content[0].type"),
    ({"input": [user([{"type": "input_image", "image_url": "http://x"}])]}, "input[0].content[0].input_image"),
    ({"input": [user([{"type": "input_file", "file_id": "x"}])]}, "input[0].content[0].input_file"),
    ({"input": [user("x") | {"evil": 1}]}, "input[0].evil"),
    ({"input": [user("x") | {"call_id": "c"}]}, "input[0].call_id"),
    ({"input": [RESULT]}, "input[0].call_id"),
    ({"input": [CALL, RESULT | {"call_id": "d"}]}, "input[1].call_id"),
    ({"input": [CALL | {"name": None}]}, "input[0].name"),
    ({"input": [CALL | {"output": "x"}]}, "input[0].output"),
    ({"input": [CALL | {"namespace": "n"}]}, "input[0].namespace"),
    ({"input": [user("x")] * 10_001}, "input"),
    ({"input": "x" * 600}, "input"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": True}, "max_output_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"seed": 2**64}, "seed"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"], "tools": [FUNCTION]}, "include"),
    ({"include": ["everything"]}, "include[0]"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ({"metadata": {"x": "y" * 513}}, "metadata[...]"),
    ({"metadata": {"x": 1}}, "metadata[...]"),
    ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ({"previous_response_id": "x" * 129}, "previous_response_id"),
    ({"conversation": "conv"}, "conversation"),
    ({"background": True}, "background"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"reasoning": {"effort": "high"}}, "reasoning"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [FUNCTION | {"parameters": []}]}, "tools[0].parameters"),
    ({"tools": [FUNCTION | {"name": "a b"}]}, "tools"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools"),
    ({"tools": [FUNCTION] * 129}, "tools"),
    ({"tools": [FUNCTION | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [FUNCTION | {"async": True}]}, "tools[0].async"),
    ({"tools": [FUNCTION | {"allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [FUNCTION]}, "tool_choice"),
    ({"tool_choice": {"type": "file_search"}, "tools": [FUNCTION]}, "tool_choice.type"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
    ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
    ({"prompt_cache_key": "x" * 1025}, "prompt_cache_key"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"truncation": "middle"}, "truncation"),
    ({"truncation": "auto", "input": [user("x" * 600)]}, "input"),
    ({"n": 2}, "n"),
]


@pytest.mark.parametrize(("fields", "param"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_request_that_cannot_be_is_400_with_its_field(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        answer: Answer = send(server.port, "POST", "/v1/responses", response_body() | fields | {"stream": stream})

        assert answer.status == 400, answer.body
        assert answer.headers["content-type"] == "application/json"
        error = answer.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param
