"""What one tenant has said can't be seen by another, not even by guessing (S-C2…S-C4), and still helps its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foreword.core.errors import InvalidRequestError
from foreword.server.tenants import KeyRing, new_key
from tests.server.conftest import Keyed
from tests.server.wire import chat_body, completion_body, message_body, response_body, send

SECRET = "the quarterly figures are not to be told to anybody before Thursday"
CALLS: dict[str, tuple[str, Any]] = {
    "chat": ("/v1/chat/completions", chat_body),
    "completion": ("/v1/completions", completion_body),
    "message": ("/v1/messages", message_body),
    "response": ("/v1/responses", response_body),
}
DETAILS = {"chat": "prompt_tokens_details", "completion": "prompt_tokens_details", "response": "input_tokens_details"}


@pytest.fixture(scope="module", params=["int16", "f16"])
def _stored(request: pytest.FixtureRequest, tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    keyed = Keyed(tiny, tmp_path_factory.mktemp("keys"), kv_dtype=request.param)
    keyed.live.start()
    yield keyed
    keyed.live.stop()


@pytest.fixture
def keyed(_stored: Keyed) -> Iterator[Keyed]:
    """A server with keys that stores K and V so, idle before and after."""
    yield _stored
    _stored.live.check_idle()


def read_tokens(keyed: Keyed, who: str, kind: str, text: str, **fields: Any) -> int:
    path, body = CALLS[kind]
    answer = send(keyed.live.port, "POST", path, body(text, **fields), key=keyed.keys[who])
    assert answer.status == 200
    usage = answer.json["usage"]
    found = usage["cache_read_input_tokens"] if kind == "message" else usage[DETAILS[kind]]["cached_tokens"]
    assert answer.headers["foreword-cached-tokens"] == str(found)
    return int(found)


@pytest.fixture(autouse=True)
def _empty_cache(keyed: Keyed) -> None:
    keyed.live.run(keyed.live.service.engine.run(lambda engine: engine.reset_cache()))


@pytest.mark.parametrize("kind", CALLS)
def test_a_tenant_reads_its_own_words_and_nobody_elses(keyed: Keyed, kind: str) -> None:
    probes = [SECRET, *(SECRET[:end] + "?" for end in range(1, len(SECRET), 6)), SECRET]
    unprimed = [read_tokens(keyed, "ops", kind, probe) for probe in probes]
    read_tokens(keyed, "alice", kind, SECRET)

    guessed = [read_tokens(keyed, "bob", kind, probe) for probe in probes]

    assert guessed[0] == 0
    assert guessed == unprimed  # what bob reads is what bob wrote
    assert read_tokens(keyed, "alice", kind, SECRET) >= len(SECRET) - 1
    assert read_tokens(keyed, "alice2", kind, SECRET) >= len(SECRET) - 1  # the same tenant by another key


@pytest.mark.parametrize("kind", CALLS)
def test_a_salt_narrows_and_never_widens(keyed: Keyed, kind: str) -> None:
    text = f"salted {kind}: {SECRET}"
    domain = keyed.live.service.keys.find(keyed.keys["alice"])
    assert domain is not None
    read_tokens(keyed, "alice", kind, text)
    read_tokens(keyed, "alice", kind, text, cache_salt="s1")

    for stolen in ("s1", "alice", domain.domain.hex(), domain.domain.decode("latin-1"), keyed.keys["alice"]):
        assert read_tokens(keyed, "bob", kind, text, cache_salt=stolen) == 0
    assert read_tokens(keyed, "alice", kind, text, cache_salt="s2") == 0
    assert read_tokens(keyed, "alice", kind, text, cache_salt="s1") > 0
    assert read_tokens(keyed, "alice", kind, text) > 0


@pytest.mark.parametrize("header", ["x-tenant", "x-tenant-id", "x-user", "openai-organization", "x-forwarded-user"])
def test_no_header_names_a_tenant(keyed: Keyed, header: str) -> None:
    text = f"{header}: {SECRET}"
    read_tokens(keyed, "alice", "completion", text)

    answer = send(
        keyed.live.port,
        "POST",
        "/v1/completions",
        completion_body(text, user="alice"),
        key=keyed.keys["bob"],
        **{header: "alice"},
    )

    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_remembered_answers_stay_with_their_tenant(keyed: Keyed) -> None:
    body = chat_body("tell me", max_tokens=12, temperature=0)
    said = send(keyed.live.port, "POST", "/v1/chat/completions", body, key=keyed.keys["alice"]).json
    turns = [
        *body["messages"],
        {"role": "assistant", "content": said["choices"][0]["message"]["content"]},
        {"role": "user", "content": "go on"},
    ]

    usages = [
        send(keyed.live.port, "POST", "/v1/chat/completions", body | {"messages": turns}, key=keyed.keys[who]).json[
            "usage"
        ]
        for who in ("bob", "alice")
    ]

    assert usages[0]["prompt_tokens_details"]["cached_tokens"] == 0
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] > 0


def test_namespaces_differ_wherever_anything_does(keyed: Keyed) -> None:
    ring = keyed.live.service.keys
    alice, bob = ring.find(keyed.keys["alice"]), ring.find(keyed.keys["bob"])
    assert alice is not None
    assert bob is not None
    salts = (None, "a", "b", "ab", " a", "alice", "bob", "\0")

    namespaces = [tenant.namespace(salt) for tenant in (alice, bob) for salt in salts]

    assert len(set(namespaces)) == len(namespaces)
    assert {len(namespace) for namespace in namespaces} == {32}
    assert KeyRing().local.domain != KeyRing().local.domain  # the secret is this process's own


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice user",
        "alice user sk-plain-text-key",
        "alice admin sha256:" + "0" * 64,
        "alice user sha256:" + "0" * 63,
        "alice user sha256:" + "g" * 64,
        "al/ice user sha256:" + "0" * 64,
        "a" * 65 + " user sha256:" + "0" * 64,
        "",
        "# only a comment",
    ],
)
def test_a_malformed_file_of_keys_is_refused_without_quoting_it(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(line + "\n")

    with pytest.raises(InvalidRequestError) as caught:
        KeyRing.from_file(file)

    assert "sk-plain" not in str(caught.value)


def test_a_new_key_fits_its_line(tmp_path: Path) -> None:
    key, line = new_key("carol", "operator")
    (tmp_path / "keys").write_text(line)
    ring = KeyRing.from_file(tmp_path / "keys")

    found = ring.find(key)

    assert found is not None
    assert (found.name, found.is_operator) == ("carol", True)
    assert key not in line
    assert ring.find(key + " ") is None
    with pytest.raises(InvalidRequestError):
        new_key("two words", "user")
