"""What the loopback carries when nothing else is done with the bytes: pairs of processes, one sends, one receives."""

from __future__ import annotations

import multiprocessing
import socket
import time
from multiprocessing.connection import Connection

_BLOCK = 1 << 20
_SECONDS = 2.0


def measure(pairs: int, seconds: float = _SECONDS) -> float:
    """Bytes a second of all pairs together."""
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for _ in range(pairs):
        mine, theirs = context.Pipe()
        receiver = context.Process(target=_receive, args=(theirs,))
        receiver.start()
        sender = context.Process(target=_send, args=(mine.recv(), seconds))
        sender.start()
        ends.append(mine)
        processes += [receiver, sender]
    total = sum(end.recv() for end in ends)
    for process in processes:
        process.join()
    return total


def _receive(pipe: Connection) -> None:
    """Tells its port, then the rate at which bytes came, from the first to the last."""
    buffer = bytearray(_BLOCK)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pipe.send(listening.getsockname()[1])
        connection, _ = listening.accept()
    with connection:
        received, started = connection.recv_into(buffer), time.perf_counter()
        while size := connection.recv_into(buffer):
            received += size
        pipe.send(received / (time.perf_counter() - started))


def _send(port: int, seconds: float) -> None:
    block = bytes(_BLOCK)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(block)
