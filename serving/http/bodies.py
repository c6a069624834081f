"""Threads that receive large bodies beside the event loop.

To receive is to copy, and one thread copies a few GB/s. Beside a fast accelerator an event loop that receives every
tensor itself is what all clients wait for (``benchmarks.gpu``, 32 clients with batch 8). On machines with cores to
spare it therefore hands long bodies over: the kernel fills their memory on other threads while the loop answers. Small
bodies are there sooner than a thread wakes, and stay with the loop.

A thread serves any number of connections, whichever has bytes, so a slow client holds up nobody.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Callable

APART_BYTES = 1 << 20  # from here on a body is worth a thread's waking (tens of microseconds)
_CORES_FOR_EACH = 4
_MOST_THREADS = 4
_EVENTS = 64  # handled between two looks at what has bytes
Done = Callable[["Reading"], None]


def body_threads(cores: int) -> int:
    """How many threads a server on so many cores has for bodies. None where there would be only one, which is no faster
    than the event loop, and none where the system has no epoll."""
    threads = min(_MOST_THREADS, cores // _CORES_FOR_EACH)
    return threads if threads > 1 and hasattr(select, "epoll") else 0


class Reading:
    """One body that a thread receives: so far ``size`` bytes of what is to fill ``into``."""

    def __init__(self, connection: socket.socket, into: memoryview, done: Done, thread: _Thread) -> None:
        self.connection = connection
        self.into = into
        self.size = 0
        self.done = done
        self.in_hand = False  # the thread is at it
        self.over = False
        self._thread = thread

    def stop(self) -> None:
        """Reads no further. ``done`` is not called, unless it is on its way already."""
        self._thread.drop(self)


class BodyReaders:
    """A fixed number of threads; used on one event loop."""

    def __init__(self, threads: int) -> None:
        loop = asyncio.get_running_loop()
        self._threads = [_Thread(loop, f"http-body-{number}") for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def read(self, descriptor: int, into: memoryview, done: Done) -> Reading:
        """Has a thread fill ``into`` from a connection that nobody else reads meanwhile. ``done`` is called on the
        event loop once that is over: with fewer bytes than there is room for where the connection has ended, as whoever
        reads it next will see. Raises OSError where the system has no descriptor left.
        """
        thread = min(self._threads, key=lambda one: one.load)
        connection = socket.socket(fileno=os.dup(descriptor))
        connection.setblocking(False)
        reading = Reading(connection, into, done, thread)
        try:
            thread.take(reading)
        except OSError:
            connection.close()
            raise
        return reading

    def close(self) -> None:
        """Ends the threads; what they were reading stays as it is."""
        for thread in self._threads:
            thread.end()


class _Thread(threading.Thread):
    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._loop = loop
        self._epoll = select.epoll()
        self._ending = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._ending, select.EPOLLIN)
        self._lock = threading.Lock()
        self._readings: dict[int, Reading] = {}

    @property
    def load(self) -> int:
        return len(self._readings)

    def take(self, reading: Reading) -> None:
        descriptor = reading.connection.fileno()
        with self._lock:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._readings[descriptor] = reading

    def drop(self, reading: Reading) -> None:
        with self._lock:
            if not reading.over:
                self._forget(reading)

    def run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll(maxevents=_EVENTS):
                if descriptor == self._ending:
                    return
                self._advance(descriptor)

    def _advance(self, descriptor: int) -> None:
        with self._lock:
            reading = self._readings.get(descriptor)
            if reading is None:  # dropped since
                return
            reading.in_hand = True
        received, ended = _receive(reading.connection, reading.into[reading.size :])
        with self._lock:
            reading.in_hand = False
            if reading.over:
                reading.connection.close()
                return
            reading.size += received
            if not ended and reading.size < len(reading.into):
                return
            self._forget(reading)
        self._loop.call_soon_threadsafe(reading.done, reading)

    def _forget(self, reading: Reading) -> None:
        """With the lock held. Whoever reads closes the connection, so that its number names nothing else until then."""
        descriptor = reading.connection.fileno()
        reading.over = True
        self._epoll.unregister(descriptor)
        del self._readings[descriptor]
        if not reading.in_hand:
            reading.connection.close()

    def end(self) -> None:
        os.eventfd_write(self._ending, 1)
        self.join()
        with self._lock:
            for reading in list(self._readings.values()):
                self._forget(reading)
        self._epoll.close()
        os.close(self._ending)


def _receive(connection: socket.socket, into: memoryview) -> tuple[int, bool]:
    """How many bytes came, and whether the connection has ended."""
    try:
        received = connection.recv_into(into)
    except BlockingIOError:  # the bytes were for a connection that had this number before
        return 0, False
    except OSError:  # reset: an end like any other, which the event loop sees as well
        return 0, True
    return received, received == 0
