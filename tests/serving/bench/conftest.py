"""A small server that behaves as it is told, for the load generator to be tried on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest


@dataclass
class Seen:
    """One request as the server read it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Reply = Callable[[Seen, int], Awaitable[bytes]]


def http(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Something", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class StubServer:
    """Listens on a free port in a thread of its own. ``reply`` answers inference, given the request and its number
    from 0; an empty reply closes the connection. It counts lookups as the real server does."""

    reply: Reply
    shapes: list[dict[str, object]]
    metrics: bool = True
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        self._loop.run_until_complete(self._main())

    async def _main(self) -> None:
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stopped.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = self._loop.create_task(self._client(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
                pairs = (line.partition(": ") for line in head.decode().split("\r\n")[1:-2])
                headers = {name.lower(): value for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                answer = await self._answer(Seen(method, path, headers, body))
                if not answer:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Seen) -> bytes:
        if request.path.endswith("/shapes"):
            return http(200, json.dumps({"shapes": self.shapes}).encode())
        if request.path.endswith("/metrics"):
            return http(200, self._metrics()) if self.metrics else http(404)
        number = len(self.seen)
        self.seen.append(request)
        return await self.reply(request, number)

    def _metrics(self) -> bytes:
        count = len(self.seen)
        cold = min(count, 2)  # the first two requests meet cold shapes
        return (
            "# TYPE preheat_shape_lookups_total counter\n"
            f'preheat_shape_lookups_total{{model="m",outcome="cold"}} {cold}\n'
            f'preheat_shape_lookups_total{{model="m",outcome="warm"}} {count - cold}\n'
            'preheat_shape_lookups_total{model="other",outcome="cold"} 99\n'
            "# TYPE preheat_store_new_entries_total counter\n"
            f'preheat_store_new_entries_total{{store="inductor"}} {3 * cold}\n'
        ).encode()


PLAN: list[dict[str, object]] = [
    {"shape": "x=1x3:fp32", "weight": 0.7},
    {"shape": "x=2x3:fp32", "weight": 0.2},
    {"shape": "x=1x5:fp32", "weight": 0.1},
]


async def answer_well(request: Seen, number: int) -> bytes:
    return http(200, b'{"outputs":[]}')


@pytest.fixture
def stub() -> Iterator[Callable[..., StubServer]]:
    servers: list[StubServer] = []

    def start(reply: Reply = answer_well, metrics: bool = True) -> StubServer:
        servers.append(StubServer(reply, list(PLAN), metrics))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
