"""Questions to a running server: one JSON object back, or one line that says why not."""

import http.client
import json
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

import typer

from foreword.core.errors import ForewordError, InvalidRequestError

TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 16 * 2**20

UrlOption = Annotated[str | None, typer.Option("--url", help="A running server, e.g. http://127.0.0.1:8000.")]
KeyOption = Annotated[
    str | None, typer.Option("--key", envvar="FOREWORD_API_KEY", help="API key for it.", show_envvar=True)
]


def ask(url: str, path: str, key: str | None, body: Mapping[str, object] | None = None) -> dict[str, object]:
    """The server's answer to a GET, or with `body` to a POST. Redirects are not followed: a key goes to one host.

    An address that ends in `/v1`, as clients want it, is taken too.

    Raises:
        InvalidRequestError: not an http or https address.
        ForewordError: nobody answers, or with an error.
    """
    parts = _split(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"accept": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
    data = None
    if body is not None:
        data, headers["content-type"] = json.dumps(body).encode(), "application/json"
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            connection.request(
                "GET" if data is None else "POST", parts.path.rstrip("/").removesuffix("/v1") + path, data, headers
            )
            response = connection.getresponse()
            found = response.read(MAX_ANSWER_BYTES + 1)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ForewordError(f"{url}: no answer ({reason})") from None
    return _object(url, path, response.status, found)


def as_list(url: str, value: object) -> list[object]:
    """A list within an answer.

    Raises:
        ForewordError: it is none.
    """
    if not isinstance(value, list):
        raise ForewordError(f"{url}: not an answer of foreword's")
    return value


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidRequestError("url", "an address such as http://127.0.0.1:8000", url)
    return parts


def _object(url: str, path: str, status: int, data: bytes) -> dict[str, object]:
    if len(data) > MAX_ANSWER_BYTES:
        raise ForewordError(f"{url}{path}: more than {MAX_ANSWER_BYTES // 2**20} MiB came back")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if status == 200 and isinstance(found, dict):
        return found
    told = found.get("error") if isinstance(found, dict) else None
    message = told.get("message") if isinstance(told, dict) else None
    detail = message if isinstance(message, str) else "not foreword's answer: is it a foreword server?"
    raise ForewordError(f"{url}{path}: {status}: {detail}")
