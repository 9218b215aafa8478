"""Reading a request's body: bounded in bytes and time while it comes in, and then decoded into one strict type."""

import asyncio
import gc
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from foreword.server.body_values import FEWEST_BYTES, check_values
from foreword.server.context import context_of
from foreword.server.errors import ApiError, ClientGoneError, cut
from foreword.server.limits import Limits
from foreword.server.shares import Shares
from foreword.server.tenants import Tenant

StructT = TypeVar("StructT", bound=msgspec.Struct)
DISCARD_TIMEOUT_S = 1.0
LONG_BODY_BYTES = 64 << 10
"""What is made of a body of this length may hold up the event loop."""

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_FIELD = re.compile(r"(?:unknown|required) field `([^`]*)`")


class BodyReader:
    """Reads bodies. `buffered_bytes` is what all bodies under way take together.

    `off_loop` runs in a thread what takes long. Of what bodies may take together, those of one of `share_of` take no
    more than stays free, as of places in the queue.
    """

    def __init__(
        self,
        limits: Limits,
        off_loop: Callable[[Callable[[], None]], Awaitable[None]],
        share_of: Callable[[Tenant | None], bytes],
    ) -> None:
        self._limits = limits
        self._off_loop = off_loop
        self._share_of = share_of
        self._shares = Shares()

    @property
    def buffered_bytes(self) -> int:
        """What all bodies under way take."""
        return self._shares.total

    async def read(self, request: Request, decoder: "msgspec.json.Decoder[StructT]") -> StructT:
        """The body as `decoder`'s type.

        Raises:
            ApiError: 400 malformed or of too many values, 408 too slow, 413 too large, 415 not JSON, 429 too many.
            ClientGoneError: the client left.
        """
        check_content_type(request)
        try:
            data = await self._receive(request)
        except ApiError as error:
            if error.status == 413:
                await self._discard(request)
            raise
        if len(data) >= FEWEST_BYTES:
            await self._off_loop(lambda: check_values(data))
        try:
            return _decoded(data, decoder)
        except msgspec.ValidationError as error:
            raise as_refusal(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, f"the body is not valid JSON: {error}") from None
        except RecursionError:
            raise ApiError(400, "the body is not valid JSON: it is nested too deep") from None

    async def _receive(self, request: Request) -> bytes:
        limits = self._limits
        if _declared_length(request) > limits.max_body_bytes:
            raise _too_large(limits)
        data, owner = bytearray(), self._share_of(context_of(request).tenant)
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                async for chunk in request.stream():
                    self._shares.add(owner, len(chunk))
                    data += chunk
                    if len(data) > limits.max_body_bytes:
                        raise _too_large(limits)
                    free = limits.max_buffered_body_bytes - self.buffered_bytes
                    if free < 0 or self._shares.has_share(owner, free + 1):
                        raise _too_many(limits)
        except TimeoutError:
            raise ApiError(408, "the body did not come in time", headers={"connection": "close"}) from None
        except ClientDisconnect:
            raise ClientGoneError("the client left while sending") from None
        finally:
            self._shares.add(owner, -len(data))
        return bytes(data)

    async def _discard(self, request: Request) -> None:
        """Take in some of what is too much and drop it: a client that is still sending would not see its refusal."""
        left = self._limits.max_body_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(min(DISCARD_TIMEOUT_S, self._limits.body_timeout_s)):
                while left > 0:
                    message = await request.receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return


def is_long(request: Request) -> bool:
    """True if what is made of the body belongs in a thread."""
    return "content-length" not in request.headers or _declared_length(request) >= LONG_BODY_BYTES


def check_content_type(request: Request) -> None:
    """Demand plain JSON: a browser sends nothing else across origins without asking first.

    Raises:
        ApiError: 415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "content-type must be application/json", headers={"connection": "close"})
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "content-encoding is not supported", headers={"connection": "close"})


def as_refusal(error: msgspec.ValidationError) -> ApiError:
    """A type error as 400, with the name of the field. Its text holds types and bounds; of values only enum names."""
    text = str(error)
    found = _PATH.search(text)
    path = found[1] if found else ""
    message = _PATH.sub("", text)
    named = _FIELD.search(message)
    if named is not None:
        path = f"{path}.{named[1]}" if path else named[1]
    code = "unknown_parameter" if "unknown field" in message else None
    if "required field" in message:
        code = "missing_required_parameter"
    path = cut(path)
    return ApiError(400, cut(f"{path}: {message}" if path else message), path or None, code)


def _decoded(data: bytes, decoder: "msgspec.json.Decoder[StructT]") -> StructT:
    """Without looking for garbage meanwhile: none is made, and each look would go through all that was made so far."""
    gc.disable()
    try:
        return decoder.decode(data)
    finally:
        gc.enable()


def _declared_length(request: Request) -> int:
    length = request.headers.get("content-length", "0")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def _too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the body is larger than {limits.max_body_bytes} bytes", headers={"connection": "close"})


def _too_many(limits: Limits) -> ApiError:
    headers = {"connection": "close", "retry-after": str(limits.retry_after_s)}
    return ApiError(429, "too many large requests at once", None, "rate_limit_exceeded", headers)
