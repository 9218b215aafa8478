"""Requests that can't be taken now, told so from their first bytes: no parser, no task, no route, one write.

A flood is mostly refusals, and what each costs is taken from those who are answered. So a plain request for an answer,
whose head came whole, is looked at before anything is made of it: who asks, and whether a rate, the number at once or
the queue would refuse it. All that is unusual, and all that is to be taken, goes the ordinary way, which decides anew.
"""

import functools
import re
from collections.abc import Iterable
from http import HTTPStatus

import msgspec
from msgspec import Struct

from foreword.core.errors import QueueFullError, UnavailableError
from foreword.server.context import RequestContext
from foreword.server.errors import ApiError, as_api_error, dialect_of
from foreword.server.gate import Gate, request_id_of
from foreword.server.service import Service

PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
"""Whose requests take a place in the queue, whatever they say."""

_HEAD = re.compile(
    rb"POST (/[a-z0-9/]++) HTTP/1\.1\r\n((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t -~]*+\r\n)++)\r\n"  # no two ways to match
)
_UNUSUAL = frozenset({"transfer-encoding", "expect", "upgrade", "content-encoding"})
_MAX_DIGITS = 9


class Refusal(Struct, frozen=True):
    """What is written, and how much of what was sent belongs to the request it answers."""

    answer: bytes
    num_bytes: int
    closes: bool


class EarlyRefusals:
    """Decides as the gate, the quotas and the queue would; charges nothing. Event loop only."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self._service = service
        self._gate = gate
        self._limits = service.limits

    def refuse(self, data: bytes, more_headers: Iterable[tuple[bytes, bytes]] = ()) -> Refusal | None:
        """The answer to a request that begins with `data`; None where it is to go the ordinary way."""
        if not self._service.may_refuse():
            return None
        found = _HEAD.match(data, 0, self._limits.max_head_bytes)
        path = "" if found is None else found[1].decode()
        if found is None or path not in PATHS:
            return None
        headers = _plain_headers(found[2], self._limits.max_headers)
        length = _length(headers, self._limits.max_body_bytes)
        if length is None:
            return None
        num_bytes, closes = found.end() + length, headers.get("connection", "").lower() == "close"
        if num_bytes < len(data) or (closes and num_bytes > len(data)):
            return None  # another request behind it, or an answer that closing could undo
        context = RequestContext(request_id_of(headers))
        error = self._decided(path, headers, context)
        if error is None:
            return None
        context.status = error.status
        self._gate.note(context, "POST", path)
        return Refusal(_answer(error, path, context.request_id, closes, more_headers), num_bytes, closes)

    def _decided(self, path: str, headers: dict[str, str], context: RequestContext) -> ApiError | None:
        """Why they are refused who ask; None where they aren't, or where the gate has its own words to say."""
        try:
            context.tenant = self._gate.admit(path, headers)
        except (ApiError, UnavailableError):
            return None
        if context.tenant is None:
            return None
        try:
            self._service.check_room(context.tenant)
        except (ApiError, QueueFullError) as error:
            return as_api_error(error, retry_after_s=self._limits.retry_after_s)
        return None


def _plain_headers(lines: bytes, most: int) -> dict[str, str]:
    """Names in small letters; none at all where one is unusual, missing or given twice, or there are too many."""
    headers: dict[str, str] = {}
    for line in lines.decode("ascii").split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        name = name.lower()
        if name in headers or name in _UNUSUAL or len(headers) >= most:
            return {}
        headers[name] = value.strip(" \t")
    is_plain = "host" in headers and headers.get("connection", "keep-alive").lower() in ("keep-alive", "close")
    return headers if is_plain else {}


def _length(headers: dict[str, str], most: int) -> int | None:
    """Bytes of a plain body of JSON; None of any other."""
    length = headers.get("content-length", "")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return None
    return int(length) if length.isdecimal() and len(length) <= _MAX_DIGITS and int(length) <= most else None


def _answer(
    error: ApiError, path: str, request_id: str, closes: bool, more_headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    first, last = _same_of_all(path, error.status, error.message, error.param, error.code)
    told = "".join([f"{name}: {value}\r\n" for name, value in error.headers.items()])
    told += f"x-request-id: {request_id}\r\nrequest-id: {request_id}\r\n"
    told += "connection: close\r\n" if closes else ""
    more = b"".join([b"%b: %b\r\n" % pair for pair in more_headers])
    return b"%b%b%b%b" % (first, more, told.encode("latin-1"), last)


@functools.lru_cache(maxsize=64)  # messages are few: a refusal quotes nothing of what was sent
def _same_of_all(path: str, status: int, message: str, param: str | None, code: str | None) -> tuple[bytes, bytes]:
    """What all refusals for one reason begin and end with."""
    body = msgspec.json.encode(dialect_of(path)(ApiError(status, message, param, code)))
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return first, b"content-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (len(body), body)
