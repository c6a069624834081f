from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from serving.bench.client import Target
from serving.bench.load import Sample, closed_loop, open_loop, poisson
from serving.bench.traffic import Ask

ASKS = [Ask(name, 1.0, f"/{name}", {}, (b"body",)) for name in "ab"]


def targets(url: str) -> tuple[Target, list]:
    target = Target.parse(url)
    return target, [target.encode(ask) for ask in ASKS]


def closed(url: str, order: list[int], concurrency: int, timeout: float = 10.0) -> tuple[list[Sample], int]:
    ticks: list[None] = []
    target, requests = targets(url)
    load = closed_loop(target, requests, order, concurrency, timeout, lambda: ticks.append(None))
    return asyncio.run(load), len(ticks)


def opened(url: str, order: list[int], due: list[float]) -> list[Sample]:
    target, requests = targets(url)
    return asyncio.run(open_loop(target, requests, order, due, 10.0, lambda: None))


def test_every_request_is_sent_once_in_order(stub: Callable) -> None:
    server = stub()
    order = [0, 1, 1, 0, 1]
    samples, ticks = closed(server.url, order, concurrency=1)
    assert [sample.ask for sample in samples] == order
    assert [request.path for request in server.seen] == ["/a", "/b", "/b", "/a", "/b"]
    assert ticks == 5 and server.connections == 1
    assert all(sample.ok and sample.seconds > 0 for sample in samples)
    assert [sample.due for sample in samples] == sorted(sample.due for sample in samples)


def test_clients_are_as_many_as_asked_for(stub: Callable) -> None:
    together = asyncio.Event()
    waiting = 0

    async def reply(request: object, number: int) -> bytes:
        nonlocal waiting
        waiting += 1
        if waiting == 4:  # only four at once let any of them pass
            together.set()
        await together.wait()
        return b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

    server = stub(reply)
    samples, _ = closed(server.url, [0] * 8, concurrency=4)
    assert server.connections == 4 and all(sample.ok for sample in samples)


def test_failures_are_counted_and_do_not_stop_the_rest(stub: Callable) -> None:
    async def reply(request: object, number: int) -> bytes:
        if number == 1:
            return b""
        if number == 2:
            await asyncio.sleep(3600)
        return b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % (503 if number == 3 else 200)

    samples, ticks = closed(stub(reply).url, [0] * 5, concurrency=1, timeout=0.2)
    assert [sample.code for sample in samples] == ["200", "lost", "timeout", "503", "200"]
    assert ticks == 5


def test_open_loop_counts_the_wait_that_a_stall_causes(stub: Callable) -> None:
    """All but the last request are due while the server answers none; a client that waited would hide their wait."""
    release = asyncio.Event()
    arrived = 0

    async def reply(request: object, number: int) -> bytes:
        nonlocal arrived
        arrived += 1
        if arrived == 5:
            release.set()
        await release.wait()
        return b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

    due = [0.0, 0.05, 0.1, 0.15, 0.3]
    samples = opened(stub(reply).url, [0, 1, 0, 1, 0], due)
    assert [sample.due for sample in samples] == due
    assert all(sample.ok for sample in samples)
    for sample in samples:
        assert sample.due + sample.seconds >= due[-1]  # nobody was answered before the last was due
        assert sample.late >= 0 and sample.seconds >= sample.late


def test_arrivals_are_poisson_at_the_rate() -> None:
    due = poisson(50.0, 20_000, seed=3)
    gaps = np.diff(due)
    assert due == poisson(50.0, 20_000, seed=3) == sorted(due)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)  # of an exponential, deviation and mean are the same
