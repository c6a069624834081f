"""What the tests of connections share: an application on a real socket that answers with what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from serving.http.request import BodyLimits, Request
from serving.listener import HttpServer, reserve

TEXT = (("content-type", "text/plain"),)
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
SECONDS = 10.0  # for what must happen; only a failing test waits so long


class Echo:
    """Answers with what it was asked; remembers every request. ``hold`` keeps answers back until it is set."""

    def __init__(self, seconds: float = SECONDS, aligned: int = 0, most: int = 1 << 20) -> None:
        self.requests: list[Request] = []
        self.faults: list[Exception | None] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.unanswered = 0
        self.called = asyncio.Event()
        self._limits = BodyLimits(most, seconds, aligned)

    def limits(self, request: Request) -> BodyLimits:
        return self._limits

    def answered(self, request: Request) -> None:
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
    application: Echo, body_threads: int = 0
) -> AsyncIterator[Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]]:
    server = HttpServer(application, reserve("127.0.0.1", 0), body_threads)
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
