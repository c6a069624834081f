from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from serving.http import bodies
from serving.http.bodies import APART_BYTES, BodyReaders, body_threads
from serving.lanes.job import ClientGone, RequestTimedOut
from serving.listener import HttpServer, reserve
from tests.serving.http.echo import CHUNKED, SECONDS, Echo, answer, served

LARGE = bytes(range(256)) * (3 * APART_BYTES // 256)
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(LARGE)

pytestmark = pytest.mark.skipif(not body_threads(64), reason="the threads wait with epoll, which is Linux's")


@pytest.fixture(params=[asyncio.run, uvloop.run])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    async def main(test: Callable[[], Awaitable[None]]) -> None:
        await asyncio.wait_for(test(), 60)

    return lambda test: request.param(main(test))


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How much of each body the threads were asked for. None may be left to a thread in the end."""
    sizes: list[int] = []
    readers: list[BodyReaders] = []
    read = BodyReaders.read

    def noted(self: BodyReaders, descriptor: int, into: memoryview, *how: Any) -> object:
        sizes.append(len(into))
        readers.append(self)
        return read(self, descriptor, into, *how)

    monkeypatch.setattr(BodyReaders, "read", noted)
    yield sizes
    assert not any(thread.load for one in readers for thread in one._threads)
    assert not any(thread.name.startswith("http-body") for thread in threading.enumerate())


def echo(seconds: float = SECONDS) -> Echo:
    return Echo(seconds, most=2 * len(LARGE))


def test_a_large_body_is_received_by_a_thread_and_what_follows_it_is_not(run: Callable, handed_over: list[int]) -> None:
    async def test() -> None:
        async with served(echo(), body_threads=1) as connect:
            reader, writer = await connect()
            for _ in range(2):
                writer.write(HEAD + LARGE + b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await answer(reader))[2] == b"POST / " + LARGE
                assert (await answer(reader))[2] == b"GET /next "

    run(test)
    assert len(handed_over) == 2 and all(size >= APART_BYTES for size in handed_over)


def test_the_body_is_the_one_that_was_sent(run: Callable, handed_over: list[int]) -> None:
    async def test() -> None:
        async with served(echo(), body_threads=2) as connect:

            async def client(number: int) -> None:
                mine = LARGE[number:] + LARGE[:number]
                reader, writer = await connect()
                for _ in range(3):
                    writer.write(HEAD + mine)
                    status, _, body = await answer(reader)
                    assert status == 200 and body == b"POST / " + mine

            await asyncio.gather(*map(client, range(8)))

    run(test)
    assert len(handed_over) == 24


def test_small_bodies_stay_with_the_event_loop(run: Callable, handed_over: list[int]) -> None:
    async def test() -> None:
        async with served(echo(), body_threads=1) as connect:
            reader, writer = await connect()
            small = LARGE[: APART_BYTES - 1]
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(small) + small)
            assert (await answer(reader))[2] == b"POST / " + small

    run(test)
    assert handed_over == []


def test_a_chunked_body_stays_with_the_event_loop(run: Callable, handed_over: list[int]) -> None:
    async def test() -> None:
        async with served(echo(), body_threads=1) as connect:
            reader, writer = await connect()
            writer.write(CHUNKED + b"%x\r\n" % len(LARGE) + LARGE + b"\r\n0\r\n\r\n")
            assert (await answer(reader))[2] == b"POST / " + LARGE

    run(test)
    assert handed_over == []


@pytest.mark.parametrize("small", [7, 8, 20])
def test_a_body_behind_requests_that_wait_has_one_reader(run: Callable, handed_over: list[int], small: int) -> None:
    application = echo()
    application.hold.clear()

    async def test() -> None:
        async with served(application, body_threads=1) as connect:
            reader, writer = await connect()
            writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n" * small + HEAD + LARGE)
            writer.write(b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n" + HEAD + LARGE[::-1])
            await asyncio.wait_for(application.called.wait(), SECONDS)
            application.hold.set()
            for _ in range(small):
                assert (await answer(reader))[2] == b"GET /small "
            assert (await answer(reader))[2] == b"POST / " + LARGE
            assert (await answer(reader))[2] == b"GET /next "
            assert (await answer(reader))[2] == b"POST / " + LARGE[::-1]

    run(test)


def test_without_descriptors_the_event_loop_receives(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def none_left(self: BodyReaders, *_: object) -> object:
        tried.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(BodyReaders, "read", none_left)

    async def test() -> None:
        async with served(echo(), body_threads=1) as connect:
            reader, writer = await connect()
            writer.write(HEAD + LARGE)
            assert (await answer(reader))[2] == b"POST / " + LARGE

    run(test)
    assert tried


def test_what_cannot_be_watched_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        readers = BodyReaders(1)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            monkeypatch.setattr(readers._threads[0], "_epoll", _Full(readers._threads[0]._epoll))
            with pytest.raises(OSError, match="No space left"):
                readers.read(ours.fileno(), memoryview(bytearray(10)), lambda reading: None)
            assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
            assert readers._threads[0].load == 0
        monkeypatch.undo()
        readers.close()

    asyncio.run(main())


class _Full:
    """An epoll that watches no more."""

    def __init__(self, real: select.epoll) -> None:
        self._real = real

    def register(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def poll(self, **how: int) -> object:
        return self._real.poll(**how)


def test_a_slow_client_holds_up_nobody(run: Callable, handed_over: list[int]) -> None:
    async def test() -> None:
        async with served(echo(), body_threads=1) as connect:
            slow_reader, slow = await connect()
            slow.write(HEAD + LARGE[:100])
            while not handed_over:
                await asyncio.sleep(0)
            reader, writer = await connect()
            writer.write(HEAD + LARGE)
            assert (await answer(reader))[2] == b"POST / " + LARGE
            slow.write(LARGE[100:])
            assert (await answer(slow_reader))[2] == b"POST / " + LARGE

    run(test)


def test_a_client_that_hangs_up_in_its_body(run: Callable, handed_over: list[int]) -> None:
    application = echo()

    async def test() -> None:
        async with served(application, body_threads=1) as connect:
            _, writer = await connect()
            writer.write(HEAD + LARGE[:APART_BYTES])
            while not handed_over:
                await asyncio.sleep(0)
            writer.close()
            await asyncio.wait_for(application.called.wait(), SECONDS)

    run(test)
    (fault,) = application.faults
    assert isinstance(fault, ClientGone)


def test_a_body_that_does_not_come_in_time(run: Callable, handed_over: list[int]) -> None:
    application = echo(seconds=0.05)

    async def test() -> None:
        async with served(application, body_threads=1) as connect:
            reader, writer = await connect()
            writer.write(HEAD + LARGE[:100])
            assert (await answer(reader))[0] == 413  # Echo's answer to any fault
            writer.write(LARGE[100:])  # is read by nobody
            assert await asyncio.wait_for(reader.read(), SECONDS) == b""

    run(test)
    (fault,) = application.faults
    assert isinstance(fault, RequestTimedOut)


def test_a_server_that_stops_meanwhile_says_so(run: Callable, handed_over: list[int]) -> None:
    async def test() -> None:
        server = HttpServer(echo(), reserve("127.0.0.1", 0), body_threads=1)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD + LARGE[:100])
        while not handed_over:
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(server.close())
        assert (await answer(reader))[0] == 503
        writer.close()
        await closing

    run(test)


@pytest.mark.parametrize("cores, threads", [(1, 0), (2, 0), (4, 0), (8, 2), (16, 4), (128, 4)])
def test_threads_are_for_machines_with_cores_to_spare(cores: int, threads: int) -> None:
    assert body_threads(cores) == threads


def test_no_thread_where_the_system_has_no_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(bodies.select, "epoll")
    assert body_threads(64) == 0
