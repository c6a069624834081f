"""Requests and answers on one connection, on real sockets: in which order, for how long, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest

from serving.http import connection
from serving.http.request import Request
from serving.listener import HttpServer, reserve
from tests.serving.http.echo import SECONDS, TEXT, Echo, answer, exchange, run, served


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

    def get_extra_info(self, name: str) -> None: ...

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


@pytest.mark.parametrize(
    ("peer", "headers", "local"),
    [
        (("127.0.0.1", 5), {}, True),
        (("127.8.9.1", 5), {}, True),
        (("::1", 5, 0, 0), {}, True),
        (("::ffff:127.0.0.1", 5, 0, 0), {}, True),
        (("127.0.0.1", 5), {"origin": "http://127.0.0.1:8000"}, False),  # a page in a browser
        (("10.0.0.7", 5), {}, False),
        (("::ffff:10.0.0.7", 5, 0, 0), {}, False),
        (("fe80::1%eth0", 5, 0, 2), {}, False),
        (None, {}, False),
        ("", {}, False),
    ],
)
def test_only_programs_on_this_host_are_local(peer: object, headers: dict[str, str], local: bool) -> None:
    async def test() -> None:
        sender = connection.Connection(Echo(), set())
        sender._transport = SimpleNamespace(get_extra_info=lambda name: peer if name == "peername" else None)
        assert Request(sender, "GET", "/", headers=headers).local is local

    asyncio.run(test())
