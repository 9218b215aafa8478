"""`diagnostics`: what changed since an earlier request, by the client's own types, to the token, and to nobody else."""

from array import array
from typing import Any

import pytest
from anthropic.types import Message

from foreword.server.cache_policy.diagnostics import Divergence, Fingerprint, RequestMemory, divergence, fingerprint
from tests.server.conftest import Keyed, LiveServer
from tests.server.wire import message_body, send


def ask(server: LiveServer, previous: str | None, *, key: str | None = None, **fields: Any) -> tuple[str, Any]:
    """The answer's id and its diagnostics."""
    body = message_body(**fields) | {"diagnostics": {"previous_message_id": previous}}
    answer = send(server.port, "POST", "/v1/messages", body, key=key)
    Message.model_validate_json(answer.body, strict=True)
    return answer.json["id"], answer.json["diagnostics"]


USER = {"role": "user", "content": "x" * 40}
HEADER = 1 + len("assistant\n")


def test_a_first_turn_and_one_that_only_appends_have_nothing_to_tell(server: LiveServer) -> None:
    first, told = ask(server, None, messages=[USER])
    turns = [USER, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]

    assert told is None
    assert ask(server, first, messages=turns)[1] is None
    assert "diagnostics" not in send(server.port, "POST", "/v1/messages", message_body()).json


def test_the_first_token_that_differs_is_told(server: LiveServer) -> None:
    first, _ = ask(server, None, messages=[USER])

    _, told = ask(server, first, messages=[{"role": "user", "content": "x" * 30 + "!" + "x" * 9}])

    start = 1 + len("user\n") + 30
    assert told["cache_miss_reason"] == {
        "type": "messages_changed",
        "token_position": start,
        "cache_missed_input_tokens": 10 + 2 + HEADER,
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"system": "others"}, "system_changed"), ({"system": [{"type": "text", "text": "rules"}]}, None)],
)
def test_a_changed_system_prompt_is_named_and_its_form_is_no_change(
    server: LiveServer, fields: dict[str, Any], reason: str | None
) -> None:
    first, _ = ask(server, None, system="rules")

    _, told = ask(server, first, **fields)

    assert (told and told["cache_miss_reason"]["type"]) == reason


def test_a_stream_tells_it_with_its_first_event(server: LiveServer) -> None:
    first, _ = ask(server, None, system="rules")
    body = message_body(system="others", stream=True, diagnostics={"previous_message_id": first})

    events = send(server.port, "POST", "/v1/messages", body).events

    assert events[0][0] == "message_start"
    assert "system_changed" in events[0][1]


def test_nobody_learns_of_anothers_request(keyed: Keyed) -> None:
    first, _ = ask(keyed.live, None, key=keyed.keys["alice"])

    unknown = {"cache_miss_reason": {"type": "previous_message_not_found"}}
    assert ask(keyed.live, first, key=keyed.keys["bob"])[1] == unknown
    assert ask(keyed.live, first, key=keyed.keys["alice"], cache_salt="apart")[1] == unknown
    assert ask(keyed.live, "msg_none", key=keyed.keys["alice"])[1] == unknown
    assert ask(keyed.live, first, key=keyed.keys["alice2"])[1] is None


def test_parts_count_in_their_order_and_before_tokens() -> None:
    before = fingerprint(b"", {"model": "a", "tools": [1]}, [1, 2, 3, 4])

    assert divergence(before, fingerprint(b"", {"model": "a", "tools": [1]}, [1, 2, 3, 4, 5])) is None
    assert divergence(before, fingerprint(b"", {"model": "b", "tools": [2]}, [1, 2])) == Divergence("model", 2, 0, 0)
    assert divergence(before, fingerprint(b"", {"model": "a", "tools": [1]}, [1, 9, 9])) == Divergence(None, 1, 2, 2)


def test_what_is_remembered_is_bounded_in_requests_and_tokens() -> None:
    memory = RequestMemory(max_requests=3, max_tokens=10)

    def known() -> list[str]:
        return [name for name in "abcde" if memory.find(name, b"") is not None]

    for name in "abcd":
        memory.remember(name, Fingerprint(b"", {}, array("i", [1, 2])))
    assert known() == ["b", "c", "d"]
    memory.remember("e", Fingerprint(b"", {}, array("i", range(9))))
    assert known() == ["e"]
