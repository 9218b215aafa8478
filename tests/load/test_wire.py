"""Heads and bodies of answers: what is made of one that came at once is what is made of it byte by byte."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from foreword.load.wire import Connection, WireError
from tests.load.test_inbox import Wire

BODY = b"0123456789"
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r\r\n"])
LINES = [b"a: b", b"A:c", b"Connection: close", b"connection: keep-alive", b"x", b": y", b"z: \xe9", b"r: a\rb"]
FIRST = [b"HTTP/1.1 429 Too Many", b"HTTP/1.0 200", b"HTTP/1.1 100 Continue", b"HTTP/1.1", b"", b"what 200 is"]
LENGTHS = [b"", b"content-length: 10", b"Content-Length: 7", b"content-length: 11", b"content-length: -1", b"a: b"]
HEADS = st.tuples(st.sampled_from(FIRST), ENDS, st.lists(st.tuples(st.sampled_from(LINES), ENDS), max_size=4))

Read = tuple[int, dict[str, str], bytes, bool, bytes] | str


async def read(data: bytes, *, at_once: bool) -> Read:
    wire = Wire()
    connection = Connection(wire.inbox)

    async def answer() -> Read:
        try:
            status, headers = await connection.answer_head()
            body = connection.whole_body(headers)
            if body is None:
                body = b"".join([part async for part in connection.body(headers)])
        except WireError as error:
            return str(error)
        except asyncio.IncompleteReadError:
            return "it ended"
        rest = b""
        while part := await wire.inbox.some(1 << 16):
            rest += part
        return status, headers, body, connection.is_reusable, rest

    if at_once:
        wire.give(data)
        wire.inbox.eof_received()
        return await answer()
    reading = asyncio.ensure_future(answer())
    for index in range(len(data)):
        await asyncio.sleep(0)
        wire.give(data[index : index + 1])
    await asyncio.sleep(0)
    wire.inbox.eof_received()
    return await reading


@given(st.lists(HEADS, min_size=1, max_size=2), st.sampled_from(LENGTHS), ENDS)
def test_a_head_that_came_at_once_is_read_as_one_that_did_not(
    heads: list[tuple[bytes, bytes, list[tuple[bytes, bytes]]]], length: bytes, last: bytes
) -> None:
    data = b""
    for first, end, lines in heads:
        data += first + end + b"".join(line + end for line, end in lines)
        data += length + b"\r\n" + last if length else b"\r\n"
    data += BODY

    assert asyncio.run(read(data, at_once=True)) == asyncio.run(read(data, at_once=False))


def test_a_whole_answer_is_read() -> None:
    head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\n"
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + head + b"bodyrest"
    headers = {"retry-after": "3", "content-length": "4"}
    assert asyncio.run(read(data, at_once=True)) == (429, headers, b"body", True, b"rest")
    closing = asyncio.run(read(data.replace(b"Retry-After: 3", b"Connection: close"), at_once=True))
    assert closing[1:] == ({"connection": "close", "content-length": "4"}, b"body", False, b"rest")
    too_many = b"HTTP/1.1 200 OK\r\n" + b"".join(b"h%d: v\r\n" % number for number in range(201)) + b"\r\n"
    assert asyncio.run(read(too_many, at_once=True)) == "too many headers"
