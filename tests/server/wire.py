"""Plain HTTP for tests: one request, bytes in and bytes out, nothing hidden."""

import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.server.conftest import MODEL
from tests.server.described import check_described


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str | None, str]]:
        """Server-sent events as name and data, comments left out."""
        found = []
        for block in self.body.decode().split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            names = [line[7:] for line in lines if line.startswith("event: ")]
            data = [line[6:] for line in lines if line.startswith("data: ")]
            assert len(names) + len(data) == len(lines)
            if lines:
                found.append((names[0] if names else None, "\n".join(data)))
        return found


def send(
    port: int, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str | None
) -> Answer:
    """One request; a body that isn't bytes goes as JSON. A header given as None is left out.

    Whatever comes back is held to `/openapi.json`.
    """
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    chosen: dict[str, str | None] = {"content-type": "application/json"} if data is not None else {}
    if key is not None:
        chosen["authorization"] = f"Bearer {key}"
    chosen |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, data, {n: v for n, v in chosen.items() if v is not None})
        answer = _received(connection.getresponse())
    finally:
        connection.close()
    check_described(method, path, answer.status, answer.headers, answer.body)
    return answer


def _received(response: http.client.HTTPResponse) -> Answer:
    return Answer(response.status, {n.lower(): v for n, v in response.getheaders()}, response.read())


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat request of one message."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
    return body | fields


def completion_body(prompt: Any = "hi", **fields: Any) -> dict[str, Any]:
    """A completion request."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0} | fields


def message_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A request for a message."""
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}], "temperature": 0}
    return body | fields


def response_body(text: Any = "hi", **fields: Any) -> dict[str, Any]:
    """A request for a response."""
    return {"model": MODEL, "input": text, "max_output_tokens": 4, "temperature": 0} | fields


def post_all(port: int, path: str, bodies: Iterable[bytes], *, key: str | None = None) -> Iterator[Answer]:
    """Many bodies one after the other on as few connections as the server allows."""
    headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        for body in bodies:
            connection.request("POST", path, body, headers)
            answer = _received(connection.getresponse())
            check_described("POST", path, answer.status, answer.headers, answer.body)
            yield answer
    finally:
        connection.close()


def until(is_so: Callable[[], bool]) -> None:
    """Wait for it, ten seconds at most."""
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)
