"""Requests that can't be taken now, told so from their first bytes: no parser, no task, no route, one write.

A flood is mostly refusals, and what each costs is taken from those who are answered. So a plain request for an answer,
whose head came whole, is looked at before anything is made of it: who asks, and whether a rate, the number at once or
the queue would refuse it. All that is unusual, and all that is to be taken, goes the ordinary way, which decides anew.

Clients say the same in all their heads but for the body's length. So what the last few heads said is remembered, by a
keyed hash of them: a key to this server stays nowhere.
"""

import functools
import hashlib
import re
import secrets
import time
from collections.abc import Iterable
from http import HTTPStatus

import msgspec
from msgspec import Struct

from foreword.core.errors import UnavailableError
from foreword.server.context import RequestContext
from foreword.server.errors import ApiError, dialect_of
from foreword.server.gate import Gate, given_id, new_id
from foreword.server.service import Service
from foreword.server.tenants import Tenant

PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
"""Whose requests take a place in the queue, whatever they say."""

_HEAD = re.compile(
    rb"POST (/[a-z0-9/]++) HTTP/1\.1\r\n((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t -~]*+\r\n)++)\r\n"  # no two ways to match
)
_UNUSUAL = frozenset({"transfer-encoding", "expect", "upgrade", "content-encoding"})
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
_MOST_REMEMBERED = 256


class Refusal(Struct, frozen=True):
    """What is written, and how much of what was sent belongs to the request it answers."""

    answer: bytes
    num_bytes: int
    closes: bool


class _Asked(Struct, frozen=True):
    """What a plain head of somebody who may ask says, whatever the length of the body."""

    path: str
    tenant: Tenant
    closes: bool
    given_id: str | None


class EarlyRefusals:
    """Decides as the gate, the quotas and the queue would; charges nothing. Event loop only."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self._service = service
        self._gate = gate
        self._limits = service.limits
        self._secret = secrets.token_bytes(32)
        self._keys = service.keys  # by which those who asked were known
        self._remembered: dict[bytes, _Asked] = {}

    def refuse(self, data: bytes, more_headers: Iterable[tuple[bytes, bytes]] = ()) -> Refusal | None:
        """The answer to a request that begins with `data`; None where it is to go the ordinary way."""
        service = self._service
        if not service.may_refuse() or service.engine.refusal is not None:
            return None
        started = time.monotonic()
        end = data.find(b"\r\n\r\n", 0, self._limits.max_head_bytes)
        found = None if end < 0 else _LENGTH.search(data, 0, end + 2)
        if found is None:
            return None
        length, num_bytes = int(found[1]), end + 4 + int(found[1])
        if num_bytes < len(data) or length > self._limits.max_body_bytes:
            return None  # another request behind it, or a body too long
        asked = self._asked(data, end + 4, found)
        if asked is None or (asked.closes and num_bytes > len(data)):
            return None  # unusual, or an answer that closing could undo
        error = service.refusal(asked.tenant)
        if error is None:
            return None
        request_id = asked.given_id or new_id()
        context = RequestContext(request_id, tenant=asked.tenant, started=started, status=error.status)
        self._gate.note(context, "POST", asked.path)
        answer = _answer(error, asked.path, request_id, asked.closes, more_headers)
        return Refusal(answer, num_bytes, asked.closes)

    def _asked(self, data: bytes, end: int, length: re.Match[bytes]) -> _Asked | None:
        """What the head that ends at `end` says; None where it is unusual, or the gate has its own words to say.

        Two heads without their lengths' digits are the same bytes only if the lengths stood in the same place: what is
        remembered has one length, so the other has no second.
        """
        if self._keys is not self._service.keys:
            self._remembered.clear()
            self._keys = self._service.keys
        form = hashlib.blake2b(data[: length.start(1)] + data[length.end(1) : end], key=self._secret).digest()
        asked = self._remembered.get(form)
        if asked is None:
            asked = self._read(data[:end])
            if asked is not None:
                while len(self._remembered) >= _MOST_REMEMBERED:
                    del self._remembered[next(iter(self._remembered))]
                self._remembered[form] = asked
        return asked

    def _read(self, head: bytes) -> _Asked | None:
        found = _HEAD.fullmatch(head)
        path = "" if found is None else found[1].decode()
        if found is None or path not in PATHS:
            return None
        headers = _plain_headers(found[2], self._limits.max_headers)
        try:
            tenant = self._gate.admit(path, headers) if headers else None
        except (ApiError, UnavailableError):
            return None
        if tenant is None:
            return None
        return _Asked(path, tenant, headers.get("connection", "").lower() == "close", given_id(headers))


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
    is_json = headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    return headers if is_plain and is_json else {}


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
