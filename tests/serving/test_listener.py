from __future__ import annotations

import asyncio
import http.client

import pytest

from serving.http.request import BodyLimits, Request
from serving.listener import CannotListen, HttpServer, reserve


class Hello:
    def limits(self, request: Request) -> BodyLimits:
        return BodyLimits(1000, 10.0)

    def answered(self, request: Request) -> None: ...

    def __call__(self, request: Request) -> None:
        request.respond(200, (("content-type", "text/plain"),), b"hello " + request.read())


def ask(port: int, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/", body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_free_port_is_served_and_given_back() -> None:
    async def main() -> int:
        server = HttpServer(Hello(), reserve("127.0.0.1", 0))
        await server.start()
        answer = await asyncio.to_thread(ask, server.port, b"you")
        assert answer == (200, b"hello you")
        await server.close()
        return server.port

    port = asyncio.run(main())
    reserve("127.0.0.1", port).close()


def test_a_server_that_has_closed_connections_leaves_its_port_to_the_next() -> None:
    async def main() -> int:
        server = HttpServer(Hello(), reserve("127.0.0.1", 0))
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"hello" in await reader.read()  # to its end, which is the server's: that end keeps TIME_WAIT
        writer.close()
        with pytest.raises(CannotListen):
            reserve("127.0.0.1", server.port)
        await server.close()
        return server.port

    port = asyncio.run(main())
    reserve("127.0.0.1", port).close()


def test_a_port_in_use_is_refused_unless_it_is_shared() -> None:
    with reserve("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}: Address already in use"):
            reserve("127.0.0.1", port)
        reserve("127.0.0.1", port, shared=True).close()


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(CannotListen):
        reserve("192.0.2.1", 0)  # TEST-NET-1, RFC 5737
