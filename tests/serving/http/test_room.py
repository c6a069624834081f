"""Large bodies are received into the memory that the application has for them, where it has some."""

from __future__ import annotations

import asyncio
import http.client

import numpy as np
import pytest

from handlers.engines.hostmemory import HostMemory
from serving.http.bodies import body_threads
from serving.http.request import BodyLimits, Request
from serving.listener import HttpServer, reserve

needs_threads = pytest.mark.skipif(not body_threads(64), reason="the threads wait with epoll, which is Linux's")
HEAD, SIZE = 24, 3 << 20  # bytes before the tensor, and of the body; more than comes with a request's head


class Keeper:
    """Notes where in the memory the tensor of the body is, None where it lies elsewhere."""

    def __init__(self, size: int) -> None:
        self.whole = np.zeros(size, np.uint8)
        self.memory = HostMemory(self.whole.ctypes.data, size, self.whole)
        self.places: list[int | None] = []
        self.bodies: list[bytes] = []

    def limits(self, request: Request) -> BodyLimits:
        return BodyLimits(SIZE, 10.0, HEAD, self.memory.take)

    def answered(self, request: Request) -> None: ...

    def __call__(self, request: Request) -> None:
        body = request.read()
        assert len(body) == SIZE
        address = np.frombuffer(body, np.uint8, offset=HEAD).ctypes.data
        assert address % 64 == 0
        self.places.append(address - self.whole.ctypes.data if self.memory.holds(address) else None)
        self.bodies.append(bytes(body))
        request.respond(200, (), b"")


@pytest.mark.parametrize("threads", [0, pytest.param(1, marks=needs_threads)])
@pytest.mark.parametrize(("size", "there"), [(8 << 20, True), (1 << 20, False)])
def test_a_body_lies_in_the_applications_memory_unless_that_is_full(size: int, there: bool, threads: int) -> None:
    body = np.random.default_rng(0).bytes(SIZE)
    keeper = Keeper(size)

    def ask(port: int) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        codes = []
        for _ in range(5):  # more than there is room for at once
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            answer.read()
            codes.append(answer.status)
        connection.close()
        return codes

    async def main() -> list[int]:
        server = HttpServer(keeper, reserve("127.0.0.1", 0), threads)
        await server.start()
        codes = await asyncio.to_thread(ask, server.port)
        await server.close()
        return codes

    assert asyncio.run(main()) == [200] * 5
    assert [place is not None for place in keeper.places] == [there] * 5
    assert all(found == body for found in keeper.bodies)
