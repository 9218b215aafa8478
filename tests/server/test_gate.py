"""Who gets in: deny by default, whatever the path, the Host header or the key look like (S-A1…S-A3, S-B13, S-B14)."""

import hmac
import socket
from typing import Any

import pytest

from foreword.server.app import all_routes
from foreword.server.gate import OPEN_PATHS, OPERATOR_PATHS
from foreword.server.limits import Limits
from tests.server.conftest import Keyed, LiveServer, StartServer
from tests.server.wire import Answer, chat_body, send

POST_PATHS = ("/v1/chat/completions", "/v1/completions")


def raw(port: int, request: bytes) -> bytes:
    """Bytes in, all bytes out; none when the server hangs up on us."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError:
            return b""


def test_every_route_but_health_needs_a_key(keyed: Keyed) -> None:
    opened = set()
    for route in all_routes(keyed.live.service):
        for method in route.methods or ():
            answer = send(keyed.live.port, method, route.path.replace("{model}", "tiny"), b"{}")
            if answer.status != 401:
                opened.add(route.path)

    assert opened == OPEN_PATHS


@pytest.mark.parametrize(
    "target",
    [
        *("/v1/models", "//v1/models", "/v1/../v1/models", "/V1/models", "/%2fv1/models", "/health/../v1/models"),
        *("/health/", "//health", "/HEALTH", "/health?/../v1/models#", "/nothing", "/ready/x", "http://x/v1/models"),
    ],
)
@pytest.mark.parametrize("host", ["localhost/health?", "x#", "localhost", "127.0.0.1:80/health"])
def test_no_spelling_of_path_or_host_gets_past_the_key(keyed: Keyed, target: str, host: str) -> None:
    answer = raw(keyed.live.port, f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())

    assert b"tiny" not in answer
    if not target.startswith("/health?"):
        assert answer.split()[1] in (b"400", b"401", b"404"), answer


@pytest.mark.parametrize(
    "head",
    [
        "GET /v1/models HTTP/1.0\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: a\r\nX-Forwarded-Prefix: /health\r\nX-Original-URL: /health\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YTpi\r\n",
    ],
)
def test_no_trick_of_the_head_gets_past_the_key(keyed: Keyed, head: str) -> None:
    answer = raw(keyed.live.port, f"{head}Connection: close\r\n\r\n".encode())

    assert answer.split()[1] in (b"400", b"401"), answer


def test_a_key_is_taken_from_either_header_and_both_must_agree(keyed: Keyed) -> None:
    port, alice, bob = keyed.live.port, keyed.keys["alice"], keyed.keys["bob"]

    assert send(port, "GET", "/v1/models", key=alice).status == 200
    assert send(port, "GET", "/v1/models", x_api_key=alice).status == 200
    assert send(port, "GET", "/v1/models", key=alice, x_api_key=alice).status == 200
    assert send(port, "GET", "/v1/models", key=alice, x_api_key=bob).status == 401
    for wrong in (alice[:-1], alice + "x", alice.upper(), "", "x" * 5000):
        assert send(port, "GET", "/v1/models", key=wrong).status == 401


def test_every_key_is_compared_whichever_fits(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    compare = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        seen.append(a)
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    ring = keyed.live.service.keys
    for key in (keyed.keys["alice"], keyed.keys["ops"], "wrong"):
        seen.clear()
        ring.find(key)
        assert len(seen) == ring.num_keys == 4


@pytest.mark.parametrize("path", sorted(OPERATOR_PATHS))
def test_operator_routes_are_closed_to_users(keyed: Keyed, path: str) -> None:
    assert send(keyed.live.port, "GET", path, key=keyed.keys["alice"]).status == 403
    assert send(keyed.live.port, "GET", path, key=keyed.keys["ops"]).status != 403


def test_without_keys_operator_routes_of_the_cache_stay_closed(server: LiveServer) -> None:
    assert send(server.port, "POST", "/cache/reset", {}).status == 403
    assert send(server.port, "GET", "/cache/stats").status == 403
    assert send(server.port, "GET", "/metrics").status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "169.254.1.1"]
)
def test_without_keys_only_this_machines_names_are_answered(server: LiveServer, host: str) -> None:
    answer = raw(server.port, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())

    assert answer.split()[1] == b"403"
    assert b"host_not_allowed" in answer


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:1", "LOCALHOST:9"])
def test_this_machines_names_are_answered_with_any_port(server: LiveServer, host: str) -> None:
    answer = raw(server.port, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())

    assert answer.split()[1] == b"200"


@pytest.mark.parametrize("path", POST_PATHS)
@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_a_body_must_say_that_it_is_json(server: LiveServer, path: str, kind: str | None) -> None:
    assert send(server.port, "POST", path, chat_body(), content_type=kind).status == 415
    assert send(server.port, "POST", path, chat_body(), content_encoding="gzip").status == 415


def test_no_other_origin_is_welcomed(server: LiveServer) -> None:
    answer = send(server.port, "OPTIONS", "/v1/chat/completions", origin="https://evil.example")

    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_request_ids_are_ours_or_plain_ones_of_the_client(server: LiveServer) -> None:
    assert send(server.port, "GET", "/health", x_request_id="job-1.2_a").headers["x-request-id"] == "job-1.2_a"
    for bad in ("a b", "x" * 65, "ä", '"}'):
        answer = send(server.port, "GET", "/health", x_request_id=bad.encode().decode("latin-1"))
        assert answer.headers["x-request-id"].startswith("req_")


def error_of(answer: Answer) -> dict[str, Any]:
    found = answer.json["error"]
    assert isinstance(found, dict)
    return found


def test_unknown_paths_and_methods_are_errors_in_the_dialect(server: LiveServer) -> None:
    assert error_of(send(server.port, "GET", "/nope"))["type"] == "invalid_request_error"
    wrong_method = send(server.port, "GET", "/v1/chat/completions")
    assert wrong_method.status == 405
    assert wrong_method.headers["allow"] == "POST"
    assert send(server.port, "DELETE", "/v1/models").status == 405
    assert send(server.port, "GET", "/v1/models/", None).status == 404


def test_too_many_headers_are_refused(server: LiveServer) -> None:
    many = {f"x-{number}": "y" for number in range(120)}

    assert send(server.port, "GET", "/health", **many).status == 431
    answer = raw(server.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (1 << 20))
    assert answer == b"" or answer.split()[1] == b"400"


def test_health_tells_of_an_engine_that_is_gone(start_server: StartServer) -> None:
    live = start_server()
    assert send(live.port, "GET", "/health").status == 200
    assert send(live.port, "GET", "/ready").json == {"status": "ready"}

    live.run(live.service.engine.close())

    assert send(live.port, "GET", "/health").status == 503
    assert send(live.port, "GET", "/ready").status == 503
    refused = send(live.port, "POST", "/v1/chat/completions", chat_body())
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"


def test_the_log_has_counts_and_no_words(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    secret = "the-secret-word"
    with caplog.at_level("INFO", "foreword.server"):
        send(server.port, "POST", "/v1/chat/completions", chat_body(secret, cache_salt=secret, user=secret))
        send(server.port, "POST", "/v1/chat/completions", chat_body(secret, n=99))
        server.check_idle()

    assert len(caplog.records) == 2
    assert caplog.records[0].fields["prompt_tokens"] > len(secret)  # type: ignore[attr-defined]
    assert secret not in "".join(str(record.__dict__) for record in caplog.records)


def test_labels_of_metrics_come_from_closed_sets(server: LiveServer) -> None:
    for number in range(300):
        send(server.port, "GET", f"/made-up-{number}", key=f"k{number}")
        send(server.port, "POST", "/v1/chat/completions", chat_body(model=f"m{number}"))

    text = send(server.port, "GET", "/metrics").body

    assert b"made-up" not in text
    assert b"m299" not in text
    assert len(text) < 100_000


def test_a_queue_that_is_full_says_when_to_come_back(start_server: StartServer) -> None:
    live = start_server(limits=Limits(max_queued_requests=1))
    ticket = live.service.admission.enter()

    answer = send(live.port, "POST", "/v1/chat/completions", chat_body())

    assert answer.status == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert error_of(answer)["code"] == "rate_limit_exceeded"
    ticket.leave()
    assert send(live.port, "POST", "/v1/chat/completions", chat_body()).status == 200
    live.check_idle()


def test_a_bug_is_a_500_of_the_dialect_that_tells_nothing(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr(server.service.prompts, "encode_chat", broken)

    openai = send(server.port, "POST", "/v1/chat/completions", chat_body())
    anthropic = send(server.port, "POST", "/v1/messages", chat_body())

    assert (openai.status, anthropic.status) == (500, 500)
    assert error_of(openai)["code"] == "internal_error"
    assert error_of(anthropic) == {"type": "api_error", "message": "internal error"}
    assert b"secret" not in openai.body + anthropic.body
    assert "a request failed" in caplog.messages
