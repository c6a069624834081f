"""The HTTP server on one port, inside the running event loop."""

from __future__ import annotations

import asyncio
import socket

from serving.http.bodies import BodyReaders
from serving.http.connection import Application, Connection

_BACKLOG = 2048
_LOOK_SECONDS = 1.0  # between looks at what has lasted too long
_CLOSE_SECONDS = 2.0  # for answers on their way when the server ends


class CannotListen(Exception):
    """The address cannot be bound."""


def reserve(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket bound to the address, which keeps the port while it is open; port 0 takes a free one.

    ``shared``: other processes may serve on the port too, else it must be ours alone. Raises CannotListen.
    """
    try:
        if port and not shared:
            with socket.socket(_family(host)) as alone:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind((host, port))
        bound = socket.socket(_family(host))
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((host, port))
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise CannotListen(f"{host}:{port}: {error.strerror or error}") from error
    return bound


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


class HttpServer:
    """Serves an application on a reserved address, which it closes in the end; large bodies are received by so many
    threads of their own, or by the event loop where there are none."""

    def __init__(self, application: Application, bound: socket.socket, body_threads: int = 0) -> None:
        self._application = application
        self._body_threads = body_threads
        self._readers: BodyReaders | None = None
        self._bound = bound
        self.host, self.port = bound.getsockname()[:2]
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def start(self) -> None:
        """Begins to serve on the running event loop."""
        loop = asyncio.get_running_loop()
        readers = self._readers = BodyReaders(self._body_threads) if self._body_threads else None
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._application, self._connections, readers), sock=self._bound, backlog=_BACKLOG
            )
        except BaseException:
            if readers is not None:
                readers.close()
            raise
        # What connections leave behind (TIME_WAIT) must not keep the next server from the port. Only from now on: a
        # socket that allows this and does not listen yet would not keep the port to itself (``reserve``).
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            connection.look(now)
        self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    async def close(self) -> None:
        """Stops accepting, answers what was taken, and closes every connection; what takes too long is cut."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        left = list(self._connections)
        for connection in left:
            connection.shut()
        if left:
            await asyncio.wait([connection.closed for connection in left], timeout=_CLOSE_SECONDS)
        for connection in list(self._connections):
            connection.abort()
        if self._readers is not None:
            self._readers.close()
        self._bound.close()
