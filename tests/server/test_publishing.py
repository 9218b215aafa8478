"""Prefixes an operator publishes: read by every tenant, whole, and nothing of a tenant through them (S-C5)."""

import json
from pathlib import Path
from typing import Any

import pytest

from foreword.core.errors import ForewordError
from foreword.llm.loading import EngineOptions, load
from foreword.server.publishing import publish_files
from foreword.server.service import Service
from tests.server.conftest import MODEL, TOKEN_BYTES, Keyed
from tests.server.wire import chat_body, completion_body, send

SYSTEM = {"role": "system", "content": "You are a patient helper of a small shop that sells bicycles."}
SIZE = 16


@pytest.fixture
def service(tiny: str) -> Service:
    return Service(load(tiny, EngineOptions(threads=1, kv_memory_bytes=4 << 20, debug=True)), names=[MODEL])


def test_every_tenant_reads_a_published_prefix_and_only_that(tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "shop.json").write_text(json.dumps([SYSTEM]))
    (folder / "notes.txt").write_text("n" * 40)
    (folder / "README.md").write_text("not a prompt")
    keyed = Keyed(tiny, tmp_path)
    published = publish_files(keyed.live.service, [folder])
    keyed.live.start()
    try:

        def read(who: str, path: str, body: dict[str, Any]) -> int:
            answer = send(keyed.live.port, "POST", path, body, key=keyed.keys[who])
            assert answer.status == 200
            return int(answer.headers["foreword-cached-tokens"])

        def chat(who: str, text: str) -> int:
            messages = [SYSTEM, {"role": "user", "content": text}]
            return read(who, "/v1/chat/completions", chat_body(messages=messages))

        assert sorted(Path(name).name for name in published) == ["notes.txt", "shop.json"]
        shop = published[str(folder / "shop.json")]
        assert published[str(folder / "notes.txt")] == 32
        assert shop % SIZE == 0
        assert shop > 48
        secret = "alice asks about a red bicycle for her niece"
        assert chat("alice", secret) == shop  # warm from the start
        assert chat("bob", secret) == shop  # and nothing of what alice said
        assert chat("alice", secret) > shop + len(secret)
        assert chat("ops", secret[:20] + "?") == shop
        assert read("ops", "/v1/completions", completion_body("n" * 33)) == 32
        assert read("ops", "/v1/completions", completion_body("n" * 31 + "x")) == 0
        reset = send(keyed.live.port, "POST", "/cache/reset", {}, key=keyed.keys["ops"])
        assert reset.status == 200
        assert chat("bob", secret) == shop
        stats = send(keyed.live.port, "GET", "/cache/stats", key=keyed.keys["ops"]).json
        assert stats["invariants"] == "hold"
        assert stats["held_blocks"] == (shop + 32) // SIZE
    finally:
        keyed.live.stop()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("short.txt", b"abc", "at least a block of 16 tokens"),
        ("long.txt", b"a" * 600, "context"),
        ("broken.json", b"[{", "truncated"),
        ("neither.json", b"{}", "either prompt or messages"),
        ("number.json", b"7", "array"),
        ("bytes.txt", b"\xff\xfe" * 20, "utf-8"),
        ("other.md", b"a" * 40, "ends in .txt or .json"),
        ("missing.txt", None, "No such file"),
    ],
)
def test_what_cannot_be_published_is_one_line_with_the_files_name(
    service: Service, tmp_path: Path, name: str, content: bytes | None, expected: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ForewordError, match=expected) as refused:
        publish_files(service, [file])

    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    assert service.loaded.engine.stats().held_blocks == 0


def test_more_than_fits_beside_the_longest_sequence_is_refused(tiny: str, tmp_path: Path) -> None:
    loaded = load(tiny, EngineOptions(threads=1, kv_memory_bytes=512 * TOKEN_BYTES, debug=True))
    file = tmp_path / "one.txt"
    file.write_text("a" * 100)

    with pytest.raises(ForewordError, match="do not fit"):
        publish_files(Service(loaded, names=[MODEL]), [file])


@pytest.mark.parametrize("options", [{"prefix_cache": "hash"}, {"kv_cache": False}])
def test_only_the_radix_index_publishes(tiny: str, tmp_path: Path, options: dict[str, Any]) -> None:
    loaded = load(tiny, EngineOptions(threads=1, kv_memory_bytes=4 << 20, **options))
    file = tmp_path / "one.txt"
    file.write_text("a" * 100)

    with pytest.raises(ForewordError, match="radix"):
        publish_files(Service(loaded, names=[MODEL]), [file])
