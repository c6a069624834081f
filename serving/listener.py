"""The HTTP server on one port, inside the running event loop.

Granian binds with SO_REUSEPORT, so that several processes can share a port; by itself it neither takes a free port nor
notices that another server holds the port already. Both are settled here before it starts.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server as EmbeddedServer

_BACKLOG = 2048
_LOOK_SECONDS = 0.005


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
    """Serves an RSGI application on a reserved address."""

    def __init__(self, application: Any, bound: socket.socket) -> None:
        self._bound = bound
        self.host, self.port = bound.getsockname()[:2]
        self._server = EmbeddedServer(
            application,
            address=self.host,
            port=self.port,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            websockets=False,
            log_enabled=False,
            backlog=_BACKLOG,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to serve on the running event loop, and returns once the port answers."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve())
        while not self._task.done():
            try:
                _, writer = await asyncio.open_connection(self.host, self.port)
            except ConnectionRefusedError:  # Granian tells nobody when its runtime has begun to listen
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            writer.close()
            await writer.wait_closed()
            return
        await self._task

    async def close(self) -> None:
        """Stops accepting, closes what is open, and waits until both are done."""
        self._server.stop()
        if self._task is not None:
            await self._task
        self._bound.close()
