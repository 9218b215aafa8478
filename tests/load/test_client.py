"""The client of loads against servers that answer by the book, lie, stall and leave."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

import pytest

from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.load import blocking
from foreword.load.blocking import open_blocking
from foreword.load.call import Call, Record, Session, completion_call
from foreword.load.client import Client
from foreword.load.drive import Pace, drive, poisson
from foreword.load.wire import Endpoint

CALL = completion_call("m", [1, 2, 3], 4)
EVENTS = (
    b'data: {"choices": [{"text": "a"}]}\n\n',
    b': ping\n\ndata: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2,'
    b' "prompt_tokens_details": {"cached_tokens": 2}}}\n\n',
    b"data: [DONE]\n\n",
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = STREAM + b"transfer-encoding: chunked\r\n\r\n"

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def whole_stream(*, cut: int = 1) -> bytes:
    """Each event in pieces of `cut` bytes a chunk; 0: all in one chunk."""
    data = b"".join(EVENTS)
    parts = [data] if cut == 0 else [data[i : i + cut] for i in range(0, len(data), cut)]
    return CHUNKED + b"".join(map(chunked, parts)) + b"0\r\n\r\n"


def ask(
    *answers: bytes | None, call: Call = CALL, timeout_s: float = 5.0, is_blocking: bool = False
) -> tuple[list[Record], int]:
    """One call for each answer of a server; None is silence. Records, and how many connections it took."""
    num_connections = 0
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        try:
            while left:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(len(call.body))
                answer = left.pop(0)
                if answer is None:
                    await reader.read()
                    break
                writer.write(answer)
                await writer.drain()
                if b"chunked" not in answer and b"content-length" not in answer:
                    break
                if not answer.endswith(b"\r\n\r\n") and b"chunked" in answer:
                    break  # dies in the middle
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> list[Record]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            endpoint = Endpoint.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            if is_blocking:  # in a thread and a loop of its own
                return await asyncio.to_thread(asyncio.run, calls(Client(endpoint, connect=open_blocking)))
            return await calls(Client(endpoint, timeout_s=timeout_s))

    async def calls(client: Client) -> list[Record]:
        records = [await client.send(call) for _ in answers]
        client.close()
        return records

    return asyncio.run(run()), num_connections


@pytest.mark.parametrize("cut", [0, 1, 7, 50])
def test_an_answer_is_read_however_it_is_cut(cut: int) -> None:
    (record,), _ = ask(whole_stream(cut=cut))

    assert record.outcome == "ok"
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (3, 2, 2)
    assert len(record.gaps_s) == 1
    assert record.first_s is not None
    assert record.due_s <= record.first_s <= record.last_s <= record.end_s


@pytest.mark.parametrize("cut", [0, 1, 7, 50])
def test_one_answer_at_a_time_is_read_alike(cut: int) -> None:
    first, second = ask(whole_stream(cut=cut), whole_stream(cut=cut), is_blocking=True)[0]

    for record in (first, second):
        assert record.outcome == "ok"
        assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (3, 2, 2)
        assert record.first_s is not None
        assert record.due_s <= record.first_s <= record.last_s <= record.end_s


def test_one_answer_at_a_time_tells_what_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "TIMEOUT_S", 1)
    answers = (
        CHUNKED + chunked(EVENTS[0]),
        CHUNKED + b"zz\r\n\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\n{}",
        None,
    )

    records, num_connections = ask(*answers, is_blocking=True)

    assert [record.outcome for record in records] == ["reset", "malformed", "http_500", "timeout"]
    assert num_connections == 3  # that of the refusal is used again
    with pytest.raises(InvalidRequestError, match="https"):
        asyncio.run(Client(Endpoint.of("https://localhost"), connect=open_blocking).send(CALL))


def test_a_connection_is_used_again() -> None:
    records, num_connections = ask(whole_stream(), whole_stream(), whole_stream())

    assert [record.outcome for record in records] == ["ok"] * 3
    assert num_connections == 1


def test_a_body_that_ends_with_its_connection_is_read_too() -> None:
    records, num_connections = ask(STREAM + b"\r\n" + b"".join(EVENTS), STREAM + b"\r\n" + b"".join(EVENTS))

    assert [record.outcome for record in records] == ["ok", "ok"]
    assert num_connections == 2


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (CHUNKED + chunked(EVENTS[0]) + b"0\r\n\r\n", "cut"),
        (CHUNKED + chunked(EVENTS[0]), "reset"),
        (CHUNKED + chunked(b'data: {"error": {"message": "no"}}\n\n') + b"0\r\n\r\n", "error_event"),
        (CHUNKED + chunked(b"data: {]\n\n") + b"0\r\n\r\n", "malformed"),
        (CHUNKED + b"zz\r\n\r\n\r\n", "malformed"),
        (CHUNKED + b"-5\r\n\r\n\r\n", "malformed"),
        (b"SSH-2.0-x\r\n\r\n", "malformed"),
        (b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}", "http_429"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\n{}", "http_500"),
        (None, "timeout"),
    ],
)
def test_what_goes_wrong_is_told_by_kind(answer: bytes | None, outcome: str) -> None:
    (record,), _ = ask(answer, timeout_s=0.3 if answer is None else 5.0)

    assert record.outcome == outcome
    assert record.is_error
    assert record.retry_after == (outcome == "http_429")


def test_garbage_is_meant_to_be_refused() -> None:
    garbage = Call(path="/v1/completions", body=b"{", is_garbage=True)
    refusal = b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\n{}"

    (refused,), _ = ask(refusal, call=garbage)
    (failed,), _ = ask(refusal.replace(b"400 Bad", b"500 Oh!"), call=garbage)

    assert (refused.outcome, refused.is_error) == ("refused", False)
    assert (failed.outcome, failed.is_error) == ("http_500", True)


def test_a_client_that_is_to_leave_leaves() -> None:
    (record,), _ = ask(whole_stream(), call=Call(path=CALL.path, body=CALL.body, leaves_after=1))

    assert (record.outcome, record.is_error) == ("left", False)


def test_a_port_where_nobody_listens_is_an_outcome_and_a_server_without_models_a_line() -> None:
    async def run() -> Record:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        client = Client(Endpoint.of(f"http://127.0.0.1:{port}"))
        with pytest.raises(ForewordError, match=str(port)):
            await client.first_model()
        return await client.send(CALL)

    assert asyncio.run(run()).outcome == "reset"


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://a", "http://", "http://a:99999", "http://a/b c", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="url"):
        Endpoint.of(url)


def test_an_address_may_end_as_clients_want_it() -> None:
    endpoint = Endpoint.of("https://example.org/api/v1/", "secret")

    assert (endpoint.host, endpoint.port, endpoint.prefix, endpoint.is_tls) == ("example.org", 443, "/api", True)
    assert b"POST /api/v1/completions HTTP/1.1\r\n" in endpoint.head("POST", "/v1/completions", 2)
    assert "secret" not in repr(endpoint)


def test_arrivals_are_the_same_for_a_seed_and_as_many_as_asked_for() -> None:
    def due(seed: int) -> list[float]:
        return [session.start_s for session in islice(poisson(iter([Session((CALL,))] * 2000), 50.0, seed), 2000)]

    assert due(1) == due(1) != due(2)
    assert due(1) == sorted(due(1))
    assert due(1)[-1] == pytest.approx(40, rel=0.1)


class _Told:
    """A client whose clock moves only when it is asked to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.open = self.most = 0

    def clock(self) -> float:
        return self.now

    async def send(self, call: Call, due_s: float | None = None) -> Record:
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        self.now += 1.0
        return Record(due_s=self.now if due_s is None else due_s, sent_s=self.now)


def test_a_closed_loop_has_so_many_requests_at_once_and_ends_in_time() -> None:
    client = _Told()

    records = asyncio.run(drive(client, iter([Session((CALL,))] * 1000), Pace(streams=4, duration_s=10.0)))

    assert client.most == 4
    assert 10 <= len(records) <= 14


def test_a_call_of_a_session_waits_for_the_one_before() -> None:
    client = _Told()

    asyncio.run(drive(client, [Session((CALL,) * 5)], Pace(streams=3)))

    assert client.most == 1


def test_in_an_open_loop_a_request_sent_late_has_waited_since_it_was_due() -> None:
    client = _Told()
    client.now = 100.0  # the loop is far behind: everything is due at once
    sessions = [Session((CALL,), start_s=-50.0 + number) for number in range(3)]

    records = asyncio.run(drive(client, sessions, Pace(streams=None)))

    assert sorted(record.due_s for record in records) == [50.0, 51.0, 52.0]
