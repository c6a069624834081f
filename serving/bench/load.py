"""Sends a sequence of requests, either as fast as a number of clients can (closed loop) or at moments that do not
depend on the answers (open loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event, Thread

import numpy as np

from serving.bench.client import AnswerTimeout, ClientError, Connection, Target

MAX_CONNECTIONS = 1024  # of an open loop; more requests than this at once wait here, and their time runs

Request = Sequence[bytes | memoryview]
Tick = Callable[[], None]  # called once for each request that has ended


@dataclass(frozen=True)
class Sample:
    """One request: which of the distinct ones it was (``ask``), when it was due (seconds after the run's start), how
    long until its answer was there, how late it was sent, and how it ended: a status code, ``lost`` or ``timeout``."""

    ask: int
    due: float
    seconds: float
    late: float
    code: str

    @property
    def ok(self) -> bool:
        return self.code == "200"


async def closed_loop(
    target: Target, requests: Sequence[Request], order: Sequence[int], concurrency: int, timeout: float, tick: Tick
) -> list[Sample]:
    """``concurrency`` clients, each of which sends the next request of ``order`` as soon as its last one is answered.

    Connections are open before the clock starts. Samples are in the order of sending.
    """
    samples: list[Sample] = [_UNSENT] * len(order)
    connections = await asyncio.gather(*(target.connect() for _ in range(min(concurrency, len(order)))))
    pending: Iterator[int] = iter(range(len(order)))
    start = time.perf_counter()

    async def client(connection: Connection | None) -> None:
        for index in pending:
            due = time.perf_counter()
            connection, code = await _exchange(target, connection, requests[order[index]], timeout)
            samples[index] = Sample(order[index], due - start, time.perf_counter() - due, 0.0, code)
            tick()
        if connection is not None:
            connection.close()

    await asyncio.gather(*map(client, connections))
    return samples


async def open_loop(
    target: Target, requests: Sequence[Request], order: Sequence[int], due: Sequence[float], timeout: float, tick: Tick
) -> list[Sample]:
    """Sends request ``order[i]`` at ``due[i]`` seconds, whatever the answers do. The time of a request runs from the
    moment at which it was due, so that a server that stalls cannot keep the requests it delays from being counted."""
    samples: list[Sample] = [_UNSENT] * len(order)
    idle = [await target.connect()]
    slots = asyncio.Semaphore(MAX_CONNECTIONS)
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    everything = asyncio.Event()
    start = time.perf_counter()

    async def one(index: int) -> None:
        async with slots:
            late = time.perf_counter() - start - due[index]
            connection = idle.pop() if idle else None
            connection, code = await _exchange(target, connection, requests[order[index]], timeout)
            samples[index] = Sample(order[index], due[index], time.perf_counter() - start - due[index], late, code)
            if connection is not None:
                idle.append(connection)
        tick()

    def fire(index: int) -> None:
        tasks.append(loop.create_task(one(index)))
        if len(tasks) == len(order):
            everything.set()

    with _Pace(start, due, lambda index: loop.call_soon_threadsafe(fire, index)):
        await everything.wait()
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return samples


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """``count`` moments, in seconds, of arrivals that do not know of each other, ``rate`` a second on average."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, size=count)).tolist()


_UNSENT = Sample(0, 0.0, 0.0, 0.0, "unsent")


async def _exchange(
    target: Target, connection: Connection | None, request: Request, timeout: float
) -> tuple[Connection | None, str]:
    """Sends one request, on a new connection where there is none to use; returns the connection, or None where it is
    of no more use, and how the request ended."""
    try:
        if connection is None or not connection.usable:
            connection = await target.connect()
        answer = await connection.send(request, timeout)
    except AnswerTimeout:
        return None, "timeout"
    except ClientError:
        return None, "lost"
    return (connection if connection.usable else None), str(answer.status)


class _Pace:
    """A thread that calls ``fire`` with each index when it is due. Event loops keep time to a millisecond only, which
    is longer than a small request takes."""

    def __init__(self, start: float, due: Sequence[float], fire: Callable[[int], object]) -> None:
        self._stop = Event()
        self._thread = Thread(target=self._run, args=(start, due, fire), name="bench-pace")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self, start: float, due: Sequence[float], fire: Callable[[int], object]) -> None:
        for index, moment in enumerate(due):
            wait = start + moment - time.perf_counter()
            if wait > 0 and self._stop.wait(wait):
                return
            fire(index)
