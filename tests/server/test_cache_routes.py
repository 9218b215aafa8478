"""The cache over HTTP: warmed, asked and explained by those who may, reset by the operator."""

from typing import Any

import pytest

from tests.server.conftest import MODEL, Keyed
from tests.server.wire import Answer, completion_body, send

TEXT = "a prompt that will be asked about again and again"


@pytest.fixture(autouse=True)
def _empty_cache(keyed: Keyed) -> None:
    assert post(keyed, "ops", "/cache/reset").json == {"status": "reset"}


def post(keyed: Keyed, who: str, path: str, **fields: Any) -> Answer:
    body = fields if path == "/cache/reset" else {"model": MODEL} | fields
    return send(keyed.live.port, "POST", path, body, key=keyed.keys[who])


def test_a_warmed_prompt_is_read_by_the_next_request(keyed: Keyed) -> None:
    length = len(TEXT)
    assert post(keyed, "alice", "/cache/query", prompt=TEXT).json == {"prompt_tokens": length, "cached_tokens": 0}

    warmed = post(keyed, "alice", "/cache/warm", prompt=TEXT)
    again = post(keyed, "alice", "/cache/warm", prompt=TEXT)

    assert warmed.json == {"prompt_tokens": length, "cached_tokens": 0, "written_tokens": length}
    assert warmed.headers["foreword-written-tokens"] == str(length)
    assert again.json == {"prompt_tokens": length, "cached_tokens": length - 1, "written_tokens": 0}
    assert post(keyed, "alice", "/cache/query", prompt=TEXT).json["cached_tokens"] == length - 1
    answer = send(keyed.live.port, "POST", "/v1/completions", completion_body(TEXT), key=keyed.keys["alice"])
    assert answer.json["usage"]["prompt_tokens_details"] == {"cached_tokens": length - 1, "cache_write_tokens": 0}


def test_asking_changes_nothing(keyed: Keyed) -> None:
    for path in ("/cache/query", "/cache/explain"):
        for _ in range(2):
            assert post(keyed, "alice", path, prompt=TEXT).status == 200

    stats = send(keyed.live.port, "GET", "/cache/stats", key=keyed.keys["ops"]).json
    assert stats["cached_blocks"] == stats["held_blocks"] == 0
    assert stats["free_blocks"] == stats["num_blocks"]
    assert stats["invariants"] == "hold"


def test_a_miss_is_explained_to_the_token_and_the_message(keyed: Keyed) -> None:
    messages = [{"role": "user", "content": c} for c in ("first", "second", "third")]
    post(keyed, "alice", "/cache/warm", messages=messages)

    changed = [messages[0], {"role": "user", "content": "secure"}, messages[2]]
    found = post(keyed, "alice", "/cache/explain", messages=changed).json

    assert found["cause"] == "changed"
    assert (found["wanted"], found["stored"]) == ("u", "o")
    assert found["before"].endswith("user\nsec")
    assert found["message_index"] == 1
    same = post(keyed, "alice", "/cache/explain", messages=messages).json
    assert same["cause"] == "none"
    assert same["matched_tokens"] == same["prompt_tokens"] - 1


def test_what_others_have_stored_is_told_to_the_operator_alone(keyed: Keyed) -> None:
    post(keyed, "alice", "/cache/warm", prompt=TEXT)

    told = {who: post(keyed, who, "/cache/explain", prompt=TEXT).json for who in ("bob", "ops")}

    assert told["bob"]["cause"] == "never seen"
    assert told["bob"]["matched_tokens"] == 0
    assert told["bob"]["stored"] is None
    assert told["ops"]["cause"] == "other namespace"
    assert post(keyed, "bob", "/cache/query", prompt=TEXT).json["cached_tokens"] == 0


def test_a_reset_forgets_and_only_the_operator_can(keyed: Keyed) -> None:
    post(keyed, "alice", "/cache/warm", prompt=TEXT)

    assert post(keyed, "alice", "/cache/reset").status == 403
    assert post(keyed, "alice", "/cache/query", prompt=TEXT).json["cached_tokens"] > 0
    assert post(keyed, "ops", "/cache/reset").status == 200
    assert post(keyed, "alice", "/cache/query", prompt=TEXT).json["cached_tokens"] == 0
