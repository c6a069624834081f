"""The connection on real sockets: what a client sends, byte for byte, and what it gets."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from serving.http import connection
from serving.http.request import BodyLimits, Request
from serving.lanes.job import ClientGone, RequestTimedOut
from serving.listener import HttpServer, reserve

TEXT = (("content-type", "text/plain"),)
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
SECONDS = 10.0  # for what must happen; only a failing test waits so long


class Echo:
    """Answers with what it was asked; remembers every request. ``hold`` keeps answers back until it is set."""

    def __init__(self, seconds: float = SECONDS, aligned: int = 0) -> None:
        self.requests: list[Request] = []
        self.faults: list[Exception | None] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.unanswered = 0
        self.called = asyncio.Event()
        self._limits = BodyLimits(1 << 20, seconds, aligned)

    def limits(self, request: Request) -> BodyLimits:
        return self._limits

    def answered(self) -> None:
        self.unanswered -= 1

    def __call__(self, request: Request) -> None:
        self.unanswered += 1
        self.requests.append(request)
        self.faults.append(request.fault)
        self.called.set()
        if request.path == "/raise":
            raise RuntimeError("on purpose")
        if self.hold.is_set():
            self.respond(request)
        else:
            task = asyncio.ensure_future(self.hold.wait())
            task.add_done_callback(lambda done: self.respond(request))

    def respond(self, request: Request) -> None:
        status = 200 if request.fault is None else 413
        request.respond(status, TEXT, f"{request.method} {request.path} ".encode() + bytes(request.body))


@asynccontextmanager
async def served(
    application: Echo,
) -> AsyncIterator[Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]]:
    server = HttpServer(application, reserve("127.0.0.1", 0))
    await server.start()
    writers = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.close()
        await server.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)).decode()
    status, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    length = int(headers.get("content-length", 0))
    return int(status.split()[1]), headers, await asyncio.wait_for(reader.readexactly(length), SECONDS)


async def exchange(connect: Callable, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    """Sends the pieces, each once the one before it has left, and reads one answer."""
    reader, writer = await connect()
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    return await answer(reader)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / "),
        (b"POST /a%20b?c=d HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc", b"POST /a b abc"),
        (b"GET http://x/a?b HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /a "),
        (b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", b"OPTIONS * "),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            b"POST / abcde",
        ),
    ],
)
def test_a_request_comes_whole_or_in_any_pieces(request_: bytes, expected: bytes) -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            for size in (len(request_), 7, 1):
                pieces = [request_[at : at + size] for at in range(0, len(request_), size)]
                status, headers, body = await exchange(connect, *pieces)
                assert (status, body) == (200, expected)
                assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", headers["date"])

    run(test)


@pytest.mark.parametrize("offset", [0, 1, 77, 143])
def test_a_large_body_arrives_in_memory_that_suits_its_tensor(offset: int) -> None:
    async def test() -> None:
        application = Echo(aligned=offset)
        body = bytes(offset) + np.arange(200_000, dtype=np.float32).tobytes()
        async with served(application) as connect:
            head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            _, _, found = await exchange(connect, head + body[:10], body[10:1000], body[1000:])
            assert found == b"POST / " + body
            received = application.requests[0].body
            assert isinstance(received, memoryview) and received.readonly
            array = np.frombuffer(received, np.float32, offset=offset)
            assert array.ctypes.data % 64 == 0 and array[-1] == 199_999

    run(test)


def test_requests_on_one_connection_are_answered_in_order() -> None:
    async def test() -> None:
        application = Echo()
        application.hold.clear()
        async with served(application) as connect:
            reader, writer = await connect()
            large = bytes(100_000)
            for number in range(30):
                body = large if number % 10 == 3 else b"x"
                writer.write(b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (number, len(body)) + body)
            await application.called.wait()
            assert [request.path for request in application.requests] == ["/0"]
            application.hold.set()
            for number in range(30):
                _, headers, body = await answer(reader)
                assert body.startswith(b"POST /%d " % number) and "connection" not in headers
            assert application.unanswered == 0

    run(test)


def test_many_small_requests_at_once_are_answered_in_order() -> None:
    async def test() -> None:
        application = Echo()
        application.hold.clear()
        async with served(application) as connect:
            reader, writer = await connect()
            writer.write(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(2000)))
            await application.called.wait()
            application.hold.set()
            for number in range(2000):
                assert (await answer(reader))[2] == b"GET /%d " % number

    run(test)


@pytest.mark.parametrize(
    ("request_", "connection_", "ends"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "close", True),
        (b"GET / HTTP/1.0\r\n\r\n", "close", True),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", "keep-alive", False),
    ],
)
def test_a_connection_ends_where_the_client_wants_it(request_: bytes, connection_: str, ends: bool) -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            reader, writer = await connect()
            writer.write(request_)
            _, headers, _ = await answer(reader)
            assert headers["connection"] == connection_
            if ends:
                assert await asyncio.wait_for(reader.read(), SECONDS) == b""
            else:
                writer.write(request_)
                await answer(reader)

    run(test)


def test_head_has_the_length_but_not_the_body() -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            reader, writer = await connect()
            writer.write(b"HEAD /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            text = await asyncio.wait_for(reader.read(), SECONDS)
            assert b"content-length: 8\r\n" in text and text.endswith(b"\r\n\r\n")

    run(test)


def test_a_body_that_is_waited_for_is_asked_for() -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            reader, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
            assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS) == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await answer(reader))[2] == b"POST / abc"

    run(test)


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 2000000\r\n",
        b"content-length: 2000000\r\nexpect: 100-continue\r\n",
        b"content-length: 3\r\ncontent-encoding: gzip\r\n",
    ],
)
def test_a_body_that_is_refused_is_not_read_and_its_client_learns_why(head: bytes) -> None:
    async def test() -> None:
        application = Echo()
        async with served(application) as connect:
            reader, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n" + bytes(500_000))
            status, headers, _ = await answer(reader)
            assert status == 413 and headers["connection"] == "close"
            assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        assert len(application.faults) == 1 and application.faults[0] is not None

    run(test)


def test_a_chunked_body_is_counted_while_it_arrives() -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
            head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            status, _, _ = await exchange(connect, head, *[chunk] * 17)
            assert status == 413

    run(test)


@pytest.mark.parametrize("framing", [b"content-length: 100000", b"transfer-encoding: chunked"])
def test_a_body_that_does_not_come_is_given_up(framing: bytes) -> None:
    async def test() -> None:
        application = Echo(seconds=0.01)
        async with served(application) as connect:
            await exchange(connect, b"POST / HTTP/1.1\r\nhost: x\r\n" + framing + b"\r\n\r\n5\r\n")
        assert isinstance(application.faults[0], RequestTimedOut)

    run(test)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"not http\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\nbroken\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 20000 + b"\r\n", 431),
        (b"GET /" + b"a" * 100_000, 431),
        (b"GET http://x:port/ HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 501),
        (CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED + b"3\r\nabc\r\n0\r\ncontent-length: 5\r\n\r\n", 400),
        (CHUNKED + b"3\r\nabc\r\n0\r\n" + b"a: b\r\n" * 20000, 431),
        (CHUNKED + b"3;" + b"a" * 100_000, 431),
    ],
)
def test_what_is_not_http_ends_the_connection(text: bytes, status: int) -> None:
    async def test() -> None:
        application = Echo()
        async with served(application) as connect:
            reader, writer = await connect()
            writer.write(text)
            assert (await answer(reader))[0] == status
            assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        assert not application.requests

    run(test)


def test_garbage_behind_a_request_waits_for_its_answer() -> None:
    async def test() -> None:
        application = Echo()
        application.hold.clear()
        async with served(application) as connect:
            reader, writer = await connect()
            writer.write(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n\x00\x01\x02\r\n\r\n")
            await application.called.wait()
            application.hold.set()
            assert (await answer(reader))[0] == 200
            assert (await answer(reader))[0] == 400

    run(test)


def test_a_chunked_body_that_turns_to_garbage_is_no_request() -> None:
    async def test() -> None:
        application = Echo()
        async with served(application) as connect:
            status, _, body = await exchange(connect, CHUNKED + b"3\r\nabc\r\n", b"zz\r\n\r\n")
            assert (status, application.requests) == (400, []) and b"chunk size" in body

    run(test)


def test_a_trailer_is_no_header() -> None:
    async def test() -> None:
        application = Echo()
        async with served(application) as connect:
            _, _, body = await exchange(connect, CHUNKED + b"3\r\nabc\r\n0\r\nx: y\r\nhost: z\r\n\r\n")
            assert body == b"POST / abc" and application.requests[0].headers["host"] == "x"
            assert "x" not in application.requests[0].headers

    run(test)


def test_a_body_in_tiny_chunks_is_taken_as_a_whole() -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            body = bytes(range(256)) * 200
            chunks = b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body), 2))
            _, _, found = await exchange(connect, CHUNKED, chunks + b"0\r\n\r\n")
            assert found == b"POST / " + body

    run(test)


@pytest.mark.parametrize("size", [0, 3, 100_000])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_an_offer_to_upgrade_is_ignored(size: int, chunked: bool, together: bool) -> None:
    """What Java's client and ``curl --http2`` send with their first request."""
    body = b"x" * size
    framing, sent = b"content-length: %d" % size, body
    if chunked:
        framing, sent = b"transfer-encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if size else b"0\r\n\r\n"
    offer = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    first = b"POST /1 HTTP/1.1\r\nhost: x\r\n" + offer + framing + b"\r\n\r\n"

    async def test() -> None:
        async with served(Echo()) as connect:
            reader, writer = await connect()
            for piece in [first + sent + first + sent] if together else [first, sent, first, sent]:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            for _ in range(2):
                status, _, found = await answer(reader)
                assert (status, found) == (200, b"POST /1 " + body)

    run(test)


def test_nothing_follows_a_request_for_a_tunnel() -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            reader, writer = await connect()
            writer.write(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nGET / HTTP/1.1\r\n\r\n")
            assert (await answer(reader))[1]["connection"] == "close"
            assert await asyncio.wait_for(reader.read(), SECONDS) == b""

    run(test)


def test_an_old_client_is_not_told_to_go_on() -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            head = b"POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
            assert (await exchange(connect, head, b"abc"))[2] == b"POST / abc"

    run(test)


def test_a_client_that_hangs_up_is_noticed() -> None:
    async def test() -> None:
        application = Echo()
        application.hold.clear()
        async with served(application) as connect:
            _, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await application.called.wait()
            writer.close()
            await asyncio.wait_for(application.requests[0].gone(), SECONDS)
            application.hold.set()

    run(test)


def test_a_client_that_hangs_up_within_its_body_is_noticed() -> None:
    async def test() -> None:
        application = Echo()
        async with served(application) as connect:
            _, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\nabc")
            await writer.drain()
            writer.close()
            await asyncio.wait_for(application.called.wait(), SECONDS)
        assert isinstance(application.faults[0], ClientGone)

    run(test)


def test_an_application_that_fails_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with served(Echo()) as connect:
            status, _, _ = await exchange(connect, b"GET /raise HTTP/1.1\r\nhost: x\r\n\r\n")
            assert status == 500

    run(test)
    assert "GET /raise failed" in caplog.text


@pytest.mark.parametrize(
    ("sent", "limit", "expected"),
    [
        (b"", "_IDLE_SECONDS", b""),
        (b"GET / HTT", "_HEAD_SECONDS", b"HTTP/1.1 408 Request Timeout"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", "_IDLE_SECONDS", b"HTTP/1.1 200 OK"),
    ],
)
def test_what_lasts_too_long_is_ended(
    sent: bytes, limit: str, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, limit, 0.0)
    monkeypatch.setattr("serving.listener._LOOK_SECONDS", 0.01)

    async def test() -> None:
        async with served(Echo()) as connect:
            reader, writer = await connect()
            writer.write(sent)
            text = await asyncio.wait_for(reader.read(), SECONDS)
            assert text.partition(b"\r\n")[0] == expected

    run(test)


@pytest.mark.parametrize(("size", "last"), [(8 << 20, b""), (8 << 20, b"close"), (10_000, b"close")])
def test_an_answer_that_nobody_takes_is_given_up(size: int, last: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a connection's end wait for that, however little is left to send."""
    monkeypatch.setattr(connection, "_STALLED_SECONDS", 0.0)
    monkeypatch.setattr("serving.listener._LOOK_SECONDS", 0.01)

    class Full(Echo):
        def respond(self, request: Request) -> None:
            request.respond(200, TEXT, bytes(size))

    async def test() -> None:
        server = HttpServer(Full(), reserve("127.0.0.1", 0))
        await server.start()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            many = (8 << 20) // size  # more than the kernel keeps for a client that does not read
            client.sendall(b"GET / HTTP/1.1\r\n\r\n" * many + b"GET / HTTP/1.1\r\nconnection: %b\r\n\r\n" % last)
            while not server.open:
                await asyncio.sleep(0.01)
            while server.open:
                await asyncio.sleep(0.01)
        await server.close()

    run(test)


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_STALLED_SECONDS", 0.5)
    monkeypatch.setattr("serving.listener._LOOK_SECONDS", 0.01)

    class Flood(Echo):
        def __call__(self, request: Request) -> None:
            request.respond(200, TEXT, bytes(16 << 20))

    async def test() -> None:
        async with served(Flood()) as connect:
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(16):
                assert len(await reader.readexactly(1 << 20)) == 1 << 20
                await asyncio.sleep(0.1)

    run(test)


def test_a_client_that_sends_its_body_while_the_server_closes_learns_why() -> None:
    async def test() -> None:
        application = Echo()
        server = HttpServer(application, reserve("127.0.0.1", 0))
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 100000\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"abc")
        closing = asyncio.ensure_future(server.close())
        status, headers, _ = await answer(reader)
        assert (status, headers["connection"]) == (503, "close")
        writer.close()
        await closing
        assert not application.requests

    run(test)


def test_a_server_that_closes_answers_what_it_has_taken() -> None:
    async def test() -> None:
        application = Echo()
        application.hold.clear()
        server = HttpServer(application, reserve("127.0.0.1", 0))
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        idle, other = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await application.called.wait()
        closing = asyncio.ensure_future(server.close())
        assert await asyncio.wait_for(idle.read(), SECONDS) == b""
        application.hold.set()
        _, headers, _ = await answer(reader)
        assert headers["connection"] == "close"
        await closing
        writer.close()
        other.close()

    run(test)


class Still:
    """A transport to which much can be written and nothing leaves."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.written))


def feed(one: connection.Connection, data: bytes) -> None:
    one.get_buffer(len(data))[: len(data)] = data
    one.buffer_updated(len(data))


def test_a_client_that_takes_no_answers_is_not_read_any_further() -> None:
    async def test() -> None:
        one, transport = connection.Connection(Echo(), set()), Still()
        one.connection_made(transport)
        one.pause_writing()
        for _ in range(7):
            feed(one, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert transport.reading
        feed(one, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not transport.reading
        one.resume_writing()
        assert transport.reading and len(transport.written) == 8

    run(test)


def test_a_client_is_given_time_to_hear_why_it_is_refused() -> None:
    async def test() -> None:
        one, transport = connection.Connection(Echo(), set()), Still()
        one.connection_made(transport)
        one._since -= 3600.0
        feed(one, b"not http\r\n\r\n")
        assert one._since > asyncio.get_running_loop().time() - 60.0

    run(test)


def test_a_body_is_asked_for_when_the_requests_before_it_are_answered() -> None:
    async def test() -> None:
        application = Echo()
        application.hold.clear()
        async with served(application) as connect:
            reader, writer = await connect()
            writer.write(b"GET /first HTTP/1.1\r\nhost: x\r\n\r\n")
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
            await application.called.wait()
            application.hold.set()
            assert (await answer(reader))[2] == b"GET /first "
            assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS) == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await answer(reader))[2] == b"POST / abc"

    run(test)
