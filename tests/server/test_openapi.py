"""`/openapi.json` says what the server does: every route, every field, every answer."""

from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from foreword.server.app import all_routes
from foreword.server.errors import ApiError, openai_body
from foreword.server.openapi.operations import OPERATIONS
from foreword.server.sse import data_event
from tests.server.conftest import MODEL, Keyed, LiveServer
from tests.server.examples import CALLED_ITEMS, EXAMPLES
from tests.server.examples import handy as handy
from tests.server.wire import chat_body, completion_body, send

MESSAGES = [{"role": "user", "content": "hi"}]


def document(server: LiveServer) -> dict[str, Any]:
    answer = send(server.port, "GET", "/openapi.json")
    assert answer.status == 200
    return dict(answer.json)


def methods_of(routes: list[Route]) -> set[tuple[str, str]]:
    return {(route.path, method.lower()) for route in routes for method in (route.methods or set()) - {"HEAD"}}


def decoders_of(route: Route) -> set[Any]:
    """Types of the bodies that a route's function decodes."""
    cells = [cell.cell_contents for cell in getattr(route.endpoint, "__closure__", None) or ()]
    return {cell.type for cell in cells if isinstance(cell, msgspec.json.Decoder)}


def test_every_route_is_described_and_nothing_else(server: LiveServer) -> None:
    described = {(path, method) for path, methods in OPERATIONS.items() for method in methods}

    assert described == methods_of(all_routes(server.service))
    assert described == {(path, method) for path, methods in document(server)["paths"].items() for method in methods}


def test_a_described_body_is_the_one_that_is_read(server: LiveServer) -> None:
    for route in all_routes(server.service):
        bodies = {operation.body for operation in OPERATIONS[route.path].values()} - {None}
        assert decoders_of(route) == bodies, route.path


def test_it_is_openapi_and_each_reference_leads_somewhere(server: LiveServer) -> None:
    found = document(server)

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            own |= set(value.get("discriminator", {}).get("mapping", {}).values())
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    for reference in references(found):
        place = found
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
    ids = [operation["operationId"] for methods in found["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)
    assert found["openapi"] == "3.1.0"


def test_a_route_says_who_may_ask_and_which_errors_it_knows(server: LiveServer) -> None:
    paths = document(server)["paths"]

    assert [path for path, methods in paths.items() if methods.get("get", {}).get("security") == []] == [
        "/health",
        "/ready",
    ]
    errors = {path: methods["post"]["responses"]["400"]["$ref"] for path, methods in paths.items() if "post" in methods}
    assert errors["/v1/messages/count_tokens"].endswith("/AnthropicError")
    assert errors["/v2/rerank"].endswith("/CohereError")
    assert errors["/v1/rerank"].endswith("/OpenAIError")


def test_a_client_that_has_it_is_told_so(server: LiveServer) -> None:
    first = send(server.port, "GET", "/openapi.json")
    again = send(server.port, "GET", "/openapi.json", if_none_match=first.headers["etag"])

    assert (again.status, again.body) == (304, b"")
    assert len(first.body) < 150_000


def test_it_is_told_to_those_who_have_a_key(keyed: Keyed) -> None:
    assert send(keyed.live.port, "GET", "/openapi.json").status == 401
    assert send(keyed.live.port, "GET", "/openapi.json", key=keyed.keys["alice"]).status == 200


POSTS = [path for path, methods in OPERATIONS.items() if "post" in methods and not methods["post"].is_refused]


@pytest.mark.parametrize("path", POSTS)
def test_an_example_of_each_route_is_answered_as_described(handy: Keyed, path: str) -> None:
    """`send` holds every answer to the document; here each route gives at least one."""
    for body in EXAMPLES[path]:
        answer = send(handy.live.port, "POST", path, body, key=handy.keys["ops"])
        assert answer.status == 200, answer.body
        if OPERATIONS[path]["post"].events:
            streamed = send(handy.live.port, "POST", path, body | {"stream": True}, key=handy.keys["ops"])
            assert streamed.headers["content-type"].startswith("text/event-stream")


def test_what_is_only_looked_at_is_answered_as_described(handy: Keyed) -> None:
    port, key = handy.live.port, handy.keys["ops"]
    said = {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "no"}, {"type": "refusal", "refusal": "no"}],
    }
    made: dict[str, Any] = {}
    for items in (MESSAGES, [said, *CALLED_ITEMS]):
        body = {"model": MODEL, "input": items, "max_output_tokens": 2, "previous_response_id": made.get("id")}
        made = send(port, "POST", "/v1/responses", body, key=key).json
    ids = {"model": MODEL, "response_id": made["id"]}

    looks = [(path, method) for path, methods in OPERATIONS.items() for method in methods if method != "post"]
    for path, method in sorted(looks, key=lambda look: look[1] == "delete"):
        answer = send(port, method.upper(), path.format_map(ids), key=key)
        assert answer.status == 200, (path, answer.body)


def test_an_answer_with_a_field_too_many_or_too_few_is_noticed() -> None:
    from tests.server.described import check_described

    headers = {"content-type": "application/json"}
    check_described("GET", "/ready", 200, headers, b'{"status": "ready"}')
    for wrong in (b'{"status": "ready", "more": 1}', b"{}", b'{"status": 1}'):
        with pytest.raises(AssertionError):
            check_described("GET", "/ready", 200, headers, wrong)
    with pytest.raises(AssertionError):
        check_described("GET", "/ready", 418, headers, b'{"status": "ready"}')


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_that_is_cut_off_is_noticed(server: LiveServer, path: str) -> None:
    from tests.server.described import check_described

    headers = {"content-type": "text/event-stream"}
    make = chat_body if path == "/v1/chat/completions" else completion_body
    told = send(server.port, "POST", path, make(stream=True)).body
    *events, last = told.removesuffix(b"\n\n").split(b"\n\n")
    error = data_event(openai_body(ApiError(500, "no", code="engine_error")))

    assert last == b"data: [DONE]"
    check_described("POST", path, 200, headers, b"\n\n".join([*events, error]))
    for wrong in (b"", last, events[0], b"\n\n".join(events), b"\n\n".join([error, *events, last])):
        with pytest.raises(AssertionError):
            check_described("POST", path, 200, headers, wrong)
