"""What a client sends, byte for byte on real sockets, and which request or refusal it makes."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

from serving.lanes.job import ClientGone, RequestTimedOut
from tests.serving.http.echo import CHUNKED, SECONDS, Echo, answer, exchange, run, served


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
