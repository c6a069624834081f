from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from serving.bench.client import Target
from serving.http.connection import Connection
from serving.http.request import BodyLimits, Request
from serving.pacing import UNPACED, unpace

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="TCP_CONGESTION is Linux's")


def paced_by(transport: Any) -> bytes:
    option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return option.rstrip(b"\0")


class Nothing:
    def limits(self, request: Request) -> BodyLimits:
        return BodyLimits(0, 1.0)

    def answered(self, request: Request) -> None: ...

    def __call__(self, request: Request) -> None: ...


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_neither_the_client_nor_the_server_paces_within_a_machine(loop: Callable[[Awaitable], None], host: str) -> None:
    async def main() -> None:
        served: set[Connection] = set()
        try:
            server = await asyncio.get_running_loop().create_server(lambda: Connection(Nothing(), served), host, 0)
        except OSError as error:
            pytest.skip(f"no {host}: {error}")
        mine = await Target(host, server.sockets[0].getsockname()[1]).connect()
        while not served:
            await asyncio.sleep(0)
        (theirs,) = served
        assert paced_by(mine._transport) == paced_by(theirs._transport) == UNPACED
        mine.close()
        await theirs.closed
        server.close()

    loop(main())


class Named(asyncio.Transport):
    """A transport with these ends, which refuses to be changed."""

    def __init__(self, mine: object, theirs: object) -> None:
        super().__init__({"sockname": mine, "peername": theirs})


@pytest.mark.parametrize(
    "ends",
    [
        (("10.0.0.1", 8080), ("10.0.0.2", 50000)),
        (("fe80::1", 8080, 0, 2), ("fe80::2%eth0", 50000, 0, 2)),
        (("127.0.0.1", 8080), None),  # the client has gone
        (None, None),
        ("/run/preheat", ""),  # a Unix socket
    ],
)
def test_other_connections_stay_as_they_are(ends: tuple[object, object]) -> None:
    unpace(Named(*ends))


def test_where_it_may_not_be_chosen_a_connection_works_as_before() -> None:
    class Forbidden:
        def setsockopt(self, *option: object) -> None:
            raise PermissionError(errno.EPERM, "not allowed")

    ends = {"sockname": ("127.0.0.1", 8080), "peername": ("127.0.0.1", 50000)}
    unpace(asyncio.BaseTransport({**ends, "socket": Forbidden()}))


def test_an_address_of_this_machine_is_within_it() -> None:
    changed = []

    class Changed:
        def setsockopt(self, *option: object) -> None:
            changed.append(option)

    transport = asyncio.BaseTransport(
        {"sockname": ("10.0.0.1", 8080), "peername": ("10.0.0.1", 50000), "socket": Changed()}
    )
    unpace(transport)
    assert changed == [(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)]
