"""How fast a connection within this machine sends.

On Linux the sender's congestion control decides that. BBR, the default of many machines that serve, spreads what it
sends over time (pacing), to keep queues in the network short. Within one machine there is no network and no queue, and
10 MB take half as long again (``benchmarks/loopback.py``). Each end decides for what it sends: the server here for its
answers, ``preheat bench`` for its requests; other clients beside a server have to do likewise.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from ipaddress import ip_address
from typing import Any

# Kept in every kernel, allowed to every process unless somebody changes that, and without pacing (Linux,
# Documentation/networking/ip-sysctl.rst, tcp_allowed_congestion_control).
UNPACED = b"reno"


def unpace(transport: asyncio.BaseTransport) -> None:
    """Has a TCP connection whose other end is on this machine send as fast as it can; others stay as they are."""
    # Not every system has a choice; a client that has gone already has no name, and a Unix socket's is a string.
    ends = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if hasattr(socket, "TCP_CONGESTION") and all(isinstance(end, tuple) for end in ends) and _near(*ends):
        connection: Any = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # an administrator may allow the default alone; it works, only later
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)


def _near(mine: tuple[str, int], theirs: tuple[str, int]) -> bool:
    return mine[0] == theirs[0] or ip_address(theirs[0].partition("%")[0]).is_loopback
